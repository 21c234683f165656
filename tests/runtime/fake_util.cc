// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/fake_util.h"

#include <deque>
#include <stdexcept>

#include "program/finalize.h"

namespace hocket::fake {

using program::BufferId;
using program::Kind;
using program::Lane;
using program::Task;
using program::TaskId;

namespace {

std::mutex bodies_mutex;
std::deque<Body>& bodies() {
  static std::deque<Body> list;  // references stay valid while others are added
  return list;
}

void call(const kernels::KernelArgs& args) {
  const Body* body;
  {
    std::lock_guard lock(bodies_mutex);
    body = &bodies().at(static_cast<size_t>(args.attrs->i("body")));
  }
  (*body)(args);
}

void nothing(const kernels::KernelArgs&) {}

}  // namespace

int64_t add_body(Body body) {
  std::lock_guard lock(bodies_mutex);
  bodies().push_back(std::move(body));
  return static_cast<int64_t>(bodies().size()) - 1;
}

kernels::KernelFn Backend::find(std::string_view op, kernels::Device,
                                const kernels::OperandTypes&) const {
  return op == "fake" ? &call : op == "nothing" ? &nothing : nullptr;
}
void Backend::enter_thread(int num_threads) {
  std::lock_guard lock(mutex_);
  entered_.push_back(num_threads);
}
std::vector<int> Backend::entered() const {
  std::lock_guard lock(mutex_);
  return entered_;
}

Builder::Builder(int stages, int dp) {
  program_.roles = {{"all", {{{"pp", stages}, {"edp", dp}}}}};
  for (int s = 0; s < stages; ++s) {
    program_.classes.push_back({});
    program_.classes.back().name = "stage" + std::to_string(s);
    program_.classes.back().box = program::Box::at(0, s);
  }
}

BufferId Builder::buffer(int stage, graph::TensorType type) {
  program::Buffer b;
  b.type = std::move(type);
  at(stage).buffers.push_back(std::move(b));
  return at(stage).buffers.size() - 1;
}

BufferId Builder::named(int stage, program::BufferKind kind, std::string name,
                        graph::TensorType type, int32_t micro_batch) {
  const BufferId id = buffer(stage, std::move(type));
  at(stage).buffers.back().kind = kind;
  at(stage).buffers.back().name = std::move(name);
  at(stage).buffers.back().micro_batch = micro_batch;
  return id;
}

std::vector<graph::TensorType> Builder::types(int stage, const std::vector<BufferId>& ids) {
  std::vector<graph::TensorType> list;
  for (BufferId b : ids) {
    list.push_back(at(stage).buffers[b].type);
  }
  return list;
}

TaskId Builder::add(int stage, Kind kind, Task task) {
  kind.in = types(stage, task.in);
  kind.out = types(stage, task.out);
  task.kind = program_.intern(std::move(kind));
  at(stage).tasks.push_back(std::move(task));
  return at(stage).tasks.size() - 1;
}

TaskId Builder::task(int stage, Lane lane, std::vector<BufferId> in, std::vector<BufferId> out,
                     Body body, int64_t workspace) {
  Kind kind;
  kind.op = body ? "fake" : "nothing";
  if (body) {
    kind.attrs.set("body", add_body(std::move(body)));
  }
  kind.workspace = workspace;
  Task t;
  t.lane = lane;
  t.in = std::move(in), t.out = std::move(out);
  return add(stage, std::move(kind), std::move(t));
}

TaskId Builder::all_reduce(int stage, Lane lane, BufferId buffer) {
  Kind kind;
  kind.op = "all_reduce";
  Task t;
  t.lane = lane;
  t.in = t.out = {buffer};
  t.group = program_.intern(program::group_over({1}));
  return add(stage, std::move(kind), std::move(t));
}

TaskId Builder::send_along(int stage, int32_t axis, int32_t offset, BufferId from, int32_t tag) {
  Kind kind;
  kind.op = "send";
  Task t;
  t.lane = Lane::intra_tx;
  t.in = {from};
  t.peer_axis = axis;
  t.peer = offset;
  t.tag = tag;
  return add(stage, std::move(kind), std::move(t));
}

TaskId Builder::recv_along(int stage, int32_t axis, int32_t offset, BufferId to, int32_t tag) {
  Kind kind;
  kind.op = "recv";
  Task t;
  t.lane = Lane::intra_rx;
  t.out = {to};
  t.peer_axis = axis;
  t.peer = offset;
  t.tag = tag;
  return add(stage, std::move(kind), std::move(t));
}

TaskId Builder::send(int stage, BufferId from, int32_t to_stage, int32_t tag) {
  return send_along(stage, 0, to_stage - stage, from, tag);
}

TaskId Builder::recv(int stage, BufferId to, int32_t from_stage, int32_t tag) {
  return recv_along(stage, 0, from_stage - stage, to, tag);
}

program::Program Builder::finish() {
  program::finalize(program_);
  return program_;
}

}  // namespace hocket::fake
