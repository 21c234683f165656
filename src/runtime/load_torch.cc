// SPDX-License-Identifier: Apache-2.0
// Loads libhocket_torch.so, the one library that sees LibTorch, when a command first executes.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "runtime/kernel.h"

namespace hocket::runtime {

std::string torch_library_path() {
  if (const char* path = std::getenv("HOCKET_TORCH_LIB"); path && *path) return path;
  std::error_code ec;
  const auto exe = std::filesystem::read_symlink("/proc/self/exe", ec);
  if (ec) fail_run("runtime", "cannot find the running executable: {}", ec.message());
  return (exe.parent_path() / "libhocket_torch.so").string();
}

std::shared_ptr<Backend> load_torch_backend() {
  static std::mutex mutex;
  static std::shared_ptr<Backend> backend;  // never unloaded: LibTorch's threads outlive it
  std::lock_guard lock(mutex);
  if (backend) return backend;
  // Read by the OpenMP runtime when it is loaded: waiting threads sleep, so that lanes share cores.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  const std::string path = torch_library_path();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail_run("runtime", "cannot load the kernels from '{}': {}; expected the library that `make "
             "build` puts beside the executable; try HOCKET_TORCH_LIB=<path>", path, dlerror());
  auto create = reinterpret_cast<Backend* (*)()>(dlsym(library, "hocket_create_backend"));
  if (!create) fail_run("runtime", "'{}' is not Hocket's kernel library: {}", path, dlerror());
  backend.reset(create());
  return backend;
}

}  // namespace hocket::runtime
