// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include "base/error.h"
#include "engine/params.h"

namespace hocket::engine {

runtime::ExecutorOptions executor_options(const Run& run) {
  runtime::ExecutorOptions options;
  options.threads = threads_per_rank(run.plan);
  options.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(run.config.plan.timeout_s * 1000));
  return options;
}

Session::Session(Compiled compiled, std::shared_ptr<kernels::Backend> backend, Stores& stores,
                 runtime::ExecutorOptions options)
    : compiled_(std::move(compiled)),
      stores_(stores),
      run_(std::make_unique<runtime::LocalRun>(compiled_.program, std::move(backend), stores,
                                               options)) {}

const graph::Tensor& Session::tensor(const std::string& name) const {
  graph::TensorId id = compiled_.reference.find(name);
  HOCKET_CHECK(id != graph::kNone, "the graph has no tensor {}", name);
  return compiled_.reference.tensor(id);
}

void Session::feed(const Batch& batch) {
  for (int32_t rank = 0; rank < run_->size(); ++rank) {
    engine::feed(batch, compiled_, rank, run_->rank(rank));
  }
}

namespace {
template <typename T>
void add(std::byte* to, const std::byte* from, int64_t begin, int64_t count, int64_t local) {
  for (int64_t i = 0; i < count; ++i) {
    reinterpret_cast<T*>(to)[begin + i] += reinterpret_cast<const T*>(from)[local + i];
  }
}
}  // namespace

std::vector<std::byte> Session::collect(const std::string& name, int32_t micro_batch) const {
  const graph::TensorType type = tensor(name).type.at(run_->rank(0).symbol_values());
  std::vector<std::byte> full(static_cast<size_t>(type.bytes()));
  bool found = false;
  program::ClassId stage = program::kNone;
  for (int32_t r = 0; r < run_->size(); ++r) {
    runtime::Executor& rank = run_->rank(r);
    if (!rank.has(name, micro_batch)) continue;
    // Replicas on other stages, and along axes where the tensor is replicated, are the same.
    if (stage == program::kNone) {
      stage = program().class_of(r);
    }
    if (program().class_of(r) != stage) continue;
    const graph::Layout& layout = rank.buffer(name, micro_batch).layout;
    const std::vector<int32_t> coords = program().mesh.coords(r);
    bool replica = false;
    for (size_t a = 0; a < coords.size(); ++a) {
      replica |=
          layout.on[a].is_replicate() && coords[a] != 0 && program().mesh.axes[a].name != "pp";
    }
    if (replica) continue;
    found = true;
    const auto* from = static_cast<const std::byte*>(rank.output(name, micro_batch));
    for_each_run(type, layout, program().mesh, r, [&](int64_t begin, int64_t count, int64_t local) {
      switch (type.dtype) {
        case graph::DType::f32:
          return add<float>(full.data(), from, begin, count, local);
        case graph::DType::f64:
          return add<double>(full.data(), from, begin, count, local);
        case graph::DType::i64:
          return add<int64_t>(full.data(), from, begin, count, local);
        case graph::DType::i32:
          return add<int32_t>(full.data(), from, begin, count, local);
        default:
          break;
      }
      fail_run("session", "can't collect {}", to_string(type));
    });
  }
  if (!found) fail_run("session", "no rank has the output {}", name);
  return full;
}

double Session::loss() const {
  return collect_as<double>(graph().tensor(graph().losses.at(0)).name)[0];
}

}  // namespace hocket::engine
