// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <optional>
#include <set>

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
  const graph::Tensor& t = tensor(name);
  std::vector<std::byte> full(static_cast<size_t>(t.type.bytes()));
  bool found = false;
  const program::Program& all = program();
  std::set<std::pair<program::RoleId, std::vector<int32_t>>> parts;
  std::optional<graph::Layout> first;
  for (int32_t r = 0; r < run_->size(); ++r) {
    runtime::Executor& rank = run_->rank(r);
    if (!rank.has(name, micro_batch)) continue;
    // Ranks that differ only along axes where the tensor is replicated hold the same, and so do
    // those that hold it in another layout or role.
    const graph::Layout& layout = rank.buffer(name, micro_batch).layout;
    if (found && (layout != *first || all.role_of(r) != parts.begin()->first)) continue;
    std::vector<int32_t> part = all.coords(r);
    for (size_t a = 0; a < part.size(); ++a) {
      if (layout.on[a].is_replicate()) {
        part[a] = 0;
      }
    }
    if (!parts.insert({all.role_of(r), std::move(part)}).second) continue;
    found = true;
    first = layout;
    const auto* from = static_cast<const std::byte*>(rank.output(name, micro_batch));
    for_each_run(t.type, layout, all, r, [&](int64_t begin, int64_t count, int64_t local) {
      switch (t.type.dtype) {
        case graph::DType::f32:
          return add<float>(full.data(), from, begin, count, local);
        case graph::DType::f64:
          return add<double>(full.data(), from, begin, count, local);
        case graph::DType::i64:
          return add<int64_t>(full.data(), from, begin, count, local);
        case graph::DType::i32:
          return add<int32_t>(full.data(), from, begin, count, local);
        case graph::DType::bf16:
          break;
      }
      fail_run("session", "can't collect {}", to_string(t.type));
    });
  }
  if (!found) fail_run("session", "no rank has the output {}", name);
  return full;
}

double Session::loss() const {
  return collect_as<double>(graph().tensor(graph().losses.at(0)).name)[0];
}

}  // namespace hocket::engine
