#include "storage/tensors/safetensors.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors_header.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

// An owned read-only mapping of a whole file. Pages come in when touched, which is why opening a 5
// GB file is cheap.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const File file = File::open_read(path);
    size_ = file.size();
    if (size_ == 0) return;
    void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (address == MAP_FAILED) throw system_error("map", path.string(), errno);
    data_ = static_cast<const std::byte*>(address);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  // Whole pages alone: the neighbours' bytes stay.
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + mapped.size()) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using Item = const std::pair<const std::string, TensorView>*;

// Wide elements first, so that every tensor lies at a multiple of its element size; then by name.
std::vector<Item> storage_order(const std::map<std::string, TensorView>& tensors) {
  std::vector<Item> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](Item a, Item b) {
    return size_of(a->second.dtype) > size_of(b->second.dtype);
  });
  return order;
}

std::string make_header(const std::filesystem::path& path,
                        const std::vector<Item>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::uint64_t offset = 0;
  for (const Item item : order) {
    const auto& [name, view] = *item;
    const auto bytes = static_cast<std::uint64_t>(view.num_elements()) * size_of(view.dtype);
    if (name == "__metadata__" || name.size() > kMaxSafetensorsNameBytes ||
        bytes != view.bytes.size()) {
      throw Error(ErrorKind::kInternal,
                  fmt::format("writing {}: tensor '{}' has a reserved or too long name, or {} "
                              "bytes where its dtype "
                              "and shape need {}",
                              path.string(),
                              name,
                              view.bytes.size(),
                              bytes));
    }
    if (text.size() > 1) text += ',';
    text += nlohmann::json(name).dump();
    text += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        to_string(view.dtype),
                        fmt::join(view.shape, ","),
                        offset,
                        offset + bytes);
    offset += bytes;
  }
  text += '}';
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

}  // namespace

std::int64_t TensorView::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dimension : shape) product *= dimension;
  return product;
}

struct SafetensorsFile::Impl {
  explicit Impl(const std::filesystem::path& p) : path(p.string()), mapping(p) {
    const std::span<const std::byte> file = mapping.bytes();
    header_bytes =
        8 + safetensors_header_length(
                as_text(file.first(std::min<std::size_t>(8, file.size()))), file.size(), path);
    const std::span<const std::byte> buffer = file.subspan(header_bytes);
    SafetensorsHeader header =
        parse_safetensors_header(as_text(file.subspan(8, header_bytes - 8)), buffer.size(), path);
    for (auto& [name, entry] : header.tensors) {
      tensors.emplace(name,
                      TensorView{entry.dtype,
                                 std::move(entry.shape),
                                 buffer.subspan(entry.begin, entry.end - entry.begin)});
    }
    unread = std::move(header.unread);
    metadata = std::move(header.metadata);
  }

  std::string path;
  Mapping mapping;
  std::size_t header_bytes = 0;
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> unread;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(path)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const std::map<std::string, TensorView>& SafetensorsFile::tensors() const { return impl_->tensors; }

const TensorView& SafetensorsFile::at(const std::string& name) const {
  const auto found = impl_->tensors.find(name);
  if (found == impl_->tensors.end()) {
    throw Error(ErrorKind::kNotFound,
                fmt::format("safetensors file {}: no tensor '{}' among its {}",
                            impl_->path,
                            name,
                            impl_->tensors.size()));
  }
  return found->second;
}

const std::map<std::string, std::string>& SafetensorsFile::unread() const { return impl_->unread; }

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}

std::span<const std::byte> SafetensorsFile::header() const {
  return impl_->mapping.bytes().first(impl_->header_bytes);
}

std::uint64_t SafetensorsFile::file_bytes() const { return impl_->mapping.bytes().size(); }

void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<Item> order = storage_order(tensors);
  const std::string header = make_header(path, order, metadata);
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = std::byte((header.size() >> (8 * i)) & 0xff);
  File file = File::create(path);
  try {
    file.write_all(length);
    file.write_all(std::as_bytes(std::span(header)));
    for (const Item item : order) file.write_all(item->second.bytes);
    file.sync();
    file.close();
  } catch (const Error&) {
    // What was written is no safetensors file, and on a full disk its space is what the user needs.
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

}  // namespace hedgerow::storage
