// hedgerow-worker's own objects behind another main: a process that has loaded LibTorch once and
// forks a child for each command line that it is given. What a child runs is hedgerow-worker's
// main. A test with hundreds of small command lines (config_walk.py) is spared loading LibTorch for
// each.
//
// A request is a line of stdin, {"arguments": [..], "stdout": FILE, "stderr": FILE}; its answer a
// line of stdout, the exit code, or less the number of the signal that ended the child.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/base/openmp_spin.hpp"

namespace {

using Main = int(int argc, char** argv, char** environment);
Main* worker_main = nullptr;

void redirect(const std::string& path, int flags, int descriptor) {
  const int file = ::open(path.c_str(), flags, 0644);
  if (file < 0 || ::dup2(file, descriptor) < 0) {
    std::perror(path.c_str());
    ::_exit(127);
  }
  ::close(file);
}

int serve(int, char** argv, char**) {
  // As hedgerow-worker's main, which would load everything anew in each child.
  if (hedgerow::storage::limit_openmp_spinning()) ::execv("/proc/self/exe", argv);
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    const ::pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) {
      redirect("/dev/null", O_RDONLY, STDIN_FILENO);
      redirect(
          request.at("stdout").get<std::string>(), O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
      redirect(
          request.at("stderr").get<std::string>(), O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
      std::vector<std::string> words = request.at("arguments");
      std::vector<char*> pointers{argv[0]};
      for (std::string& word : words) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      std::exit(worker_main(static_cast<int>(words.size()) + 1, pointers.data(), environ));
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child) return 1;
    std::cout << (WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)) << std::endl;
  }
  return 0;
}

}  // namespace

// glibc's, to which the program's entry hands main: in its place main is serve.
extern "C" int __libc_start_main(  // NOLINT(bugprone-reserved-identifier)
    Main* main,
    int argc,
    char** argv,
    void (*init)(),
    void (*fini)(),
    void (*loader_fini)(),
    void* stack_end) {
  worker_main = main;
  const auto real =
      reinterpret_cast<decltype(&__libc_start_main)>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return real(serve, argc, argv, init, fini, loader_fini, stack_end);
}
