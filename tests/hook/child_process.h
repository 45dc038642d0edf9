#pragma once
// Runs a piece of a test in a forked child, for what would change the test process for good.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>

namespace lowtide::testing {

constexpr int kChildThrew = 99;
constexpr int kChildSignalled = 1000;  // + the signal

// Returns what `body` returned in the child (0 to 98), kChildThrew or kChildSignalled + n. A child
// that hangs is ended after two minutes by SIGALRM.
inline int in_child_process(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGALRM, SIG_DFL);
    std::signal(SIGABRT, SIG_DFL);  // doctest's would report a failure
    alarm(120);
    int code = kChildThrew;
    try {
      code = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(code);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kChildSignalled + WTERMSIG(status);
}

}  // namespace lowtide::testing
