// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace hocket::comm {

namespace {

using Open = Wire* (*)(const Place&, std::chrono::milliseconds, bool nccl);
using CountGpus = int32_t (*)(std::string* why_none);

/// Beside the program that runs.
std::string library_path() {
  if (const char* given = std::getenv("HOCKET_TORCH_LIBRARY"); given && *given) return given;
  char self[PATH_MAX] = {};
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string program(self, length > 0 ? static_cast<size_t>(length) : 0);
  return join_path(parent_path(program), "libhocket_torch.so");
}

/// A function of the library, which is loaded if it is not yet. Null: there is none, `why`.
template <class Function>
Function find(const char* name, std::string* why) {
  // OpenMP threads that spin would take the cores of the lanes, and NCCL's groups would end the
  // process by themselves: both must be said before LibTorch is there. And a peer that goes is an
  // error, not a signal.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 0);
  std::signal(SIGPIPE, SIG_IGN);
  const std::string path = library_path();
  if (!file_exists(path)) {
    *why = fmt::format("{} is not there: this build was made without LibTorch", path);
    return nullptr;
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    *why = fmt::format("{} cannot be loaded: {}", path, ::dlerror());
    return nullptr;
  }
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  if (!function) {
    *why = fmt::format("{} is of another build", path);
  }
  return function;
}

}  // namespace

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

std::unique_ptr<Wire> open_c10d(const Place& place, std::chrono::milliseconds timeout,
                                Groups groups) {
  std::string why;
  const auto open = find<Open>("hocket_open_c10d", &why);
  if (!open) {
    fail("comm",
         "ranks as processes need LibTorch, and {}; try tools/setup.sh --torch && make build, or "
         "plan.ranks: local",
         why);
  }
  try {
    return std::unique_ptr<Wire>(open(place, timeout, groups == Groups::nccl));
  } catch (const std::exception& error) {
    fail_run("comm", "rank {} did not meet the others at {}:{}: {}", place.rank, place.address,
             place.port, error.what());
  }
}

}  // namespace hocket::comm
