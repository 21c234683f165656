// SPDX-License-Identifier: Apache-2.0
#include "kernels/dense_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace hocket::kernels {
namespace {

/// The beginning of oneDNN's dnnl_version_t.
struct Version {
  int major, minor, patch;
};
/// Of oneDNN's dnnl_cpu_isa_t.
constexpr int kIsaAvx2 = 0x7, kIsaAvx512 = 0x27;

thread_local const DenseLibrary* of_thread = nullptr;

template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

const DenseLibrary* dense_library() { return of_thread; }
void set_dense_library(const DenseLibrary* library) { of_thread = library; }

/// Its name is empty if there is none for this level.
DenseLibrary DenseLibrary::load(std::string_view level) {
  DenseLibrary made;
  if (level != "x86-64-v3" && level != "x86-64-v4") return made;
  void* library = nullptr;
  for (const char* file : {"libdnnl.so.3", "libdnnl.so.2"}) {
    if (!library) {
      library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
  }
  if (!library) return made;
  const auto limit = symbol<int (*)(int)>(library, "dnnl_set_max_cpu_isa");
  const auto version = symbol<const Version* (*)()>(library, "dnnl_version");
  made.sgemm_ = symbol<Sgemm>(library, "dnnl_sgemm");
  made.set_threads_ = symbol<SetThreads>(library, "omp_set_num_threads");
  if (!limit || !version || !made.sgemm_ || !made.set_threads_) return made;
  // It must not use more than the level allows, or HOCKET_CPU would mean nothing to it.
  if (limit(level == "x86-64-v4" ? kIsaAvx512 : kIsaAvx2) != 0) return made;
  made.name_ = fmt::format("oneDNN {}.{}.{}", version()->major, version()->minor, version()->patch);
  return made;
}

const DenseLibrary* DenseLibrary::find(std::string_view level) {
  const char* variable = std::getenv("HOCKET_GEMM");
  const std::string_view wanted = variable ? variable : "";
  if (wanted == "own") return nullptr;
  if (!wanted.empty() && wanted != "onednn") {
    fail("kernels", "HOCKET_GEMM is '{}'; expected own or onednn", wanted);
  }
  static const DenseLibrary library = load(level);
  if (!library.name_.empty()) return &library;
  if (wanted == "onednn") {
    fail(
        "kernels",
        "HOCKET_GEMM asks for oneDNN, which cannot be loaded for {}; try `apt install libdnnl-dev` "
        "on an x86-64-v3 or -v4 processor, or HOCKET_GEMM=own",
        level);
  }
  return nullptr;
}

void DenseLibrary::sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                         const float* a, int64_t lda, const float* b, int64_t ldb, bool add,
                         float* c, int64_t ldc) const {
  // The team of threads is ours: none of OpenMP's own.
  thread_local bool alone = false;
  if (!alone) {
    set_threads_(1);
    alone = true;
  }
  const int status = sgemm_(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1.0F, a, lda, b, ldb,
                            add ? 1.0F : 0.0F, c, ldc);
  HOCKET_CHECK(status == 0, "oneDNN: {}", status);
}

}  // namespace hocket::kernels
