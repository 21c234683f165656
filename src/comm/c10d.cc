// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "comm/run_with_timeout.h"

namespace hocket::comm {

namespace {

// Entry points of libhocket_torch (src/torch/c10d_transport.cc).
using Interface = const char* (*)();
using Open = Transport* (*)(const LaunchInfo&, std::chrono::milliseconds, bool nccl);
using CountGpus = int32_t (*)(std::string* why_none);

/// Opens the transport with a time limit. A rank that dies during the full-mesh connect can make
/// the others wait for each other in turn, longer than any single timeout; then the opening thread
/// is abandoned.
Transport* open_with_timeout(Open open, const LaunchInfo& info, std::chrono::milliseconds timeout,
                             bool nccl) {
  const auto longest = timeout + timeout / 2;
  const std::optional<Transport*> transport =
      run_with_timeout<Transport*>(longest, [=] { return open(info, timeout, nccl); });
  if (transport) return *transport;
  throw std::runtime_error(fmt::format(
      "some ranks did not connect within {} s (1.5 times plan.timeout_s)", longest.count() / 1000));
}

/// Returns the library's path: beside the running program, or HOCKET_TORCH_LIBRARY.
std::string library_path() {
  if (const char* given = std::getenv("HOCKET_TORCH_LIBRARY"); given && *given) return given;
  char self[PATH_MAX] = {};
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string program(self, length > 0 ? static_cast<size_t>(length) : 0);
  return join_path(parent_path(program), "libhocket_torch.so");
}

/// Returns a function of the library, and loads the library on the first call. Null, with the
/// reason in `why`, if that fails.
template <class Function>
Function find(const char* name, std::string* why) {
  // Must be set before LibTorch is loaded. Spinning OpenMP threads would take cores from the lanes.
  // NCCL's error handling would terminate the process. c10d's warnings about absent peers are stack
  // traces, and our error says the same. SIGPIPE is ignored, so that a lost peer is an error and
  // not a signal.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  ::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  std::signal(SIGPIPE, SIG_IGN);
  const std::string path = library_path();
  if (!file_exists(path)) {
    *why = fmt::format("{} does not exist: this build has no LibTorch", path);
    return nullptr;
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    *why = fmt::format("{} cannot be loaded: {}", path, ::dlerror());
    return nullptr;
  }
  const auto interface = reinterpret_cast<Interface>(::dlsym(library, "hocket_transport"));
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  const std::string got = interface ? interface() : "none";
  if (!function || got != HOCKET_TRANSPORT) {
    *why =
        fmt::format("{} is from another build: its interface (comm/transport.h) is {}; expected {}",
                    path, got, HOCKET_TRANSPORT);
    return nullptr;
  }
  return function;
}

}  // namespace

std::string_view without_backtrace(std::string_view what) {
  what = what.substr(0, what.find("Exception raised from"));
  return what.substr(0, what.find_last_not_of(" \n\t") + 1);
}

const Gpus& gpus() {
  static const Gpus seen = [] {
    Gpus found;
    if (const auto count = find<CountGpus>("hocket_count_gpus", &found.why_none)) {
      found.count = count(&found.why_none);
    }
    return found;
  }();
  return seen;
}

std::unique_ptr<Transport> open_c10d(const LaunchInfo& info, std::chrono::milliseconds timeout,
                                     GroupBackend groups) {
  std::string why;
  const auto open = find<Open>("hocket_open_c10d", &why);
  if (!open) {
    fail("comm",
         "ranks as processes need LibTorch, and {}; try tools/setup.sh --torch && make build, or "
         "plan.ranks: local",
         why);
  }
  try {
    return std::unique_ptr<Transport>(
        open_with_timeout(open, info, timeout, groups == GroupBackend::nccl));
  } catch (const std::exception& error) {
    fail_run("comm", "rank {} could not connect to the others at {}:{}: {}", info.rank,
             info.address, info.port, without_backtrace(error.what()));
  }
}

}  // namespace hocket::comm
