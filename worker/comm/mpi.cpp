// Ranks as MPI processes (Open MPI 4.1: no fault tolerance of its own). Non-blocking calls, polled
// with a deadline, because a blocking one would hang on a stopped or lost peer; the three calls
// that have no such form are watched.
#include "storage/base/error.hpp"
#include "worker/comm/await.hpp"
#include "worker/comm/point_to_point.hpp"
#include "worker/comm/watchdog.hpp"

#ifdef HEDGEROW_HAVE_MPI
#include <mpi.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>
#endif

namespace hedgerow::worker {

using storage::Error;
using storage::ErrorKind;

#ifndef HEDGEROW_HAVE_MPI

bool launched_by_mpi() { return false; }
MpiVersions mpi_versions() { return {}; }

std::unique_ptr<Communicator> make_mpi_communicator(std::chrono::milliseconds /*deadline*/) {
  throw Error(ErrorKind::kUsage,
              "hedgerow-worker was built without MPI; build it with -DHEDGEROW_MPI=ON, or set "
              "finetune.ranks = 1");
}

#else

namespace {

// Ranks come up as fast as a shared file system gives them their libraries; the coordinator's first
// lease of the stage is as long.
constexpr std::chrono::minutes kInitDeadline{5};

// MPI forbids a second MPI_Init, so the library lives from the first communicator to the last.
class Library {
 public:
  void enter() {
    const std::lock_guard lock(mutex_);
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      int provided = 0;
      const Watchdog watchdog("MPI_Init_thread", kInitDeadline);
      if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
          provided < MPI_THREAD_SERIALIZED) {
        throw Error(ErrorKind::kUnavailable, "MPI_Init_thread failed or offers no thread support");
      }
      MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    ++users_;
  }

  void leave(bool lost, const std::string& who) {
    const std::lock_guard lock(mutex_);
    lost_ = lost_ || lost;
    if (--users_ > 0 || lost_) return;
    const Watchdog watchdog(who + "MPI_Finalize", kCommDeadline);
    MPI_Finalize();
  }

 private:
  std::mutex mutex_;
  int users_ = 0;
  bool lost_ = false;
};

Library& library() {
  static Library instance;
  return instance;
}

class MpiCommunicator final : public PointToPointCommunicator {
 public:
  explicit MpiCommunicator(std::chrono::milliseconds deadline) : deadline_(deadline) {
    library().enter();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size_);
    // A communicator of its own: messages that an earlier one abandoned cannot be mistaken for
    // ours.
    MPI_Request request = MPI_REQUEST_NULL;
    try {
      succeed(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup", -1);
      await(
          [&] {
            int done = 0;
            succeed(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup", -1);
            return done != 0;
          },
          "MPI_Comm_idup",
          -1);
    } catch (const Error&) {
      library().leave(true, "");
      throw;
    }
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }

  // A rank that leaves by an exception is lost to the others: it does not wait for them, and mpirun
  // ends them when it exits without MPI_Finalize.
  ~MpiCommunicator() override {
    lost_ = lost_ || std::uncaught_exceptions() > exceptions_before_;
    if (!lost_) close();
    // What the library still holds it may still write to: such memory stays until the process ends.
    for (auto& transfer : dropped_) static_cast<void>(transfer.release());
    library().leave(lost_, who());
  }

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_size_; }
  [[nodiscard]] std::chrono::milliseconds deadline() const override { return deadline_; }
  std::chrono::milliseconds set_deadline(std::chrono::milliseconds deadline) override {
    return std::exchange(deadline_, deadline);
  }
  void abandon() override { lost_ = true; }

 private:
  // Everybody is here before the collective calls that have no deadline begin.
  void close() noexcept {
    try {
      barrier();
    } catch (const Error& error) {
      lost_ = true;
      std::fprintf(stderr, "hedgerow-worker: %s\n", error.what());
      return;
    }
    release_dropped();
    const Watchdog watchdog(who() + "MPI_Comm_free", deadline_);
    MPI_Comm_free(&comm_);
  }

  // A message in parts, because MPI counts are int. An empty message still travels: it is an
  // order of events.
  struct Transfer {
    std::shared_ptr<const void> owner;  // of the memory that the requests read or write
    std::vector<MPI_Request> requests;
    std::vector<std::size_t> sizes;
  };

  class MpiMessage final : public Message {
   public:
    MpiMessage(MpiCommunicator& communicator, const char* call, int peer)
        : communicator_(communicator), call_(call), peer_(peer) {}
    // Also when the deadline has passed: the library still holds the requests.
    ~MpiMessage() override {
      if (next_ < transfer->requests.size()) communicator_.dropped_.push_back(std::move(transfer));
    }
    MpiMessage(const MpiMessage&) = delete;
    MpiMessage& operator=(const MpiMessage&) = delete;

    bool is_done() override {
      while (next_ < transfer->requests.size()) {
        int done = 0;
        MPI_Status status;
        communicator_.succeed(MPI_Test(&transfer->requests[next_], &done, &status), call_, peer_);
        if (done == 0) return false;
        communicator_.check_size(status, call_, peer_, transfer->sizes[next_]);
        ++next_;
      }
      return true;
    }
    void wait() override {
      communicator_.await([this] { return is_done(); }, call_, peer_);
    }

    std::unique_ptr<Transfer> transfer = std::make_unique<Transfer>();

   private:
    MpiCommunicator& communicator_;
    const char* call_;
    int peer_;
    std::size_t next_ = 0;  // the first request that is not done
  };

  // Gives up the memory of messages that were dropped and are through by now. An error is for the
  // call that comes next to find.
  void release_dropped() {
    std::erase_if(dropped_, [](const auto& transfer) {
      int done = 0;
      const int code = MPI_Testall(static_cast<int>(transfer->requests.size()),
                                   transfer->requests.data(),
                                   &done,
                                   MPI_STATUSES_IGNORE);
      return code == MPI_SUCCESS && done != 0;
    });
  }

  // `start(bytes, count, request)` is MPI_Isend or MPI_Irecv of one part.
  template <typename Byte, typename Start>
  std::unique_ptr<Message> start_message(std::span<Byte> bytes,
                                         std::shared_ptr<const void> owner,
                                         const char* call,
                                         int peer,
                                         const Start& start) {
    constexpr std::size_t kMaxPart = 1U << 30;
    release_dropped();
    auto message = std::make_unique<MpiMessage>(*this, call, peer);
    Transfer& transfer = *message->transfer;
    transfer.owner = std::move(owner);
    std::size_t begin = 0;
    do {
      const std::size_t size = std::min(kMaxPart, bytes.size() - begin);
      MPI_Request request = MPI_REQUEST_NULL;
      succeed(start(bytes.data() + begin, static_cast<int>(size), &request), call, peer);
      transfer.requests.push_back(request);
      transfer.sizes.push_back(size);
      begin += kMaxPart;
    } while (begin < bytes.size());
    return message;
  }

  std::unique_ptr<Message> post(std::span<const std::byte> bytes,
                                std::shared_ptr<const void> owner,
                                int destination,
                                int tag) override {
    return start_message(bytes,
                         std::move(owner),
                         "MPI_Isend",
                         destination,
                         [&](const std::byte* part, int count, MPI_Request* request) {
                           return MPI_Isend(
                               part, count, MPI_BYTE, destination, tag, comm_, request);
                         });
  }

  std::unique_ptr<Message> expect(std::span<std::byte> bytes,
                                  std::shared_ptr<const void> owner,
                                  int source,
                                  int tag) override {
    return start_message(bytes,
                         std::move(owner),
                         "MPI_Irecv",
                         source,
                         [&](std::byte* part, int count, MPI_Request* request) {
                           return MPI_Irecv(part, count, MPI_BYTE, source, tag, comm_, request);
                         });
  }

  void await(const std::function<bool()>& is_done, const char* call, int peer) {
    const auto interrupt = [this] { check_interrupt(); };
    const auto give_up = [this](const std::string&) { lost_ = true; };
    await_completion(label(call, peer),
                     {.is_done = is_done, .interrupt = interrupt, .give_up = give_up},
                     deadline_);
  }

  void check_size(const MPI_Status& status,
                  const char* call,
                  int peer,
                  std::size_t expected_bytes) {
    if (std::string_view(call) != "MPI_Irecv") return;
    int received = 0;
    MPI_Get_count(&status, MPI_BYTE, &received);
    if (static_cast<std::size_t>(received) == expected_bytes) return;
    lost_ = true;
    throw Error(ErrorKind::kInternal,
                label(call, peer) + ": expected " + std::to_string(expected_bytes) +
                    " bytes, found " + std::to_string(received));
  }

  void succeed(int code, const char* call, int peer) {
    if (lost_) throw Error(ErrorKind::kUnavailable, label(call, peer) + ": an earlier call failed");
    if (code == MPI_SUCCESS) return;
    lost_ = true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(ErrorKind::kUnavailable, label(call, peer) + ": " + text);
  }

  [[nodiscard]] std::string label(const char* call, int peer) const {
    const std::string with = peer < 0 ? " with all ranks" : " with rank " + std::to_string(peer);
    return who() + call + with;
  }

  [[nodiscard]] std::string who() const {
    return "rank " + std::to_string(rank_) + " of " + std::to_string(world_size_) + ": ";
  }

  std::chrono::milliseconds deadline_;
  int rank_ = 0;
  int world_size_ = 1;
  bool lost_ = false;
  const int exceptions_before_ = std::uncaught_exceptions();
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<Transfer> > dropped_;  // which the library still holds
};

}  // namespace

MpiVersions mpi_versions() {
  MpiVersions versions;
#ifdef OMPI_MAJOR_VERSION
  versions.built = "Open MPI v" + std::to_string(OMPI_MAJOR_VERSION) + "." +
                   std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#else
  versions.built = "MPI " + std::to_string(MPI_VERSION) + "." + std::to_string(MPI_SUBVERSION);
#endif
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) == MPI_SUCCESS) {
    versions.found.assign(text.data(), static_cast<std::size_t>(length));
    versions.found.erase(std::min(versions.found.size(), versions.found.find_first_of(",\n")));
  }
  return versions;
}

bool launched_by_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

std::unique_ptr<Communicator> make_mpi_communicator(std::chrono::milliseconds deadline) {
  return std::make_unique<MpiCommunicator>(deadline);
}

#endif

}  // namespace hedgerow::worker
