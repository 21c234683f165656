// SPDX-License-Identifier: Apache-2.0
#include "torch/c10d_group.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace hocket::comm {

void PendingCollectives::add(CollectiveState* state) {
  std::lock_guard lock(mutex_);
  all_.insert(state);
  state->stopped = stopped_;
}

void PendingCollectives::remove(CollectiveState* state) {
  std::lock_guard lock(mutex_);
  all_.erase(state);
}

void PendingCollectives::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (CollectiveState* state : all_) {
    std::lock_guard stop(state->mutex);
    state->stopped = true;
    state->changed.notify_all();
  }
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Tensor of a collective: on the host, and on the device that executes it. One tensor where that
/// is the host.
struct Staged {
  at::Tensor host, there;
};

/// Pending collective. Gloo cannot cancel a collective that waits for other ranks: after a timeout
/// it is abandoned, together with its memory.
class Collective : public Request {
 public:
  /// `made`: result, copied back to the host when the collective has ended.
  Collective(PendingCollectives& all, const c10::intrusive_ptr<c10d::Work>& work,
             std::shared_ptr<CollectiveState> state, Staged made)
      : all_(all), work_(work), state_(std::move(state)), made_(std::move(made)) {
    all_.add(state_.get());
    if (on_gpu()) return;
    work->getFuture()->addCallback([state = state_](c10::ivalue::Future& future) {
      std::lock_guard lock(state->mutex);
      if (future.hasError()) {
        state->failed = future.tryRetrieveErrorMessage();
      }
      state->ended = true;
      state->changed.notify_all();
    });
  }
  ~Collective() override { all_.remove(state_.get()); }
  WaitResult wait(milliseconds timeout) override {
    const auto deadline = steady_clock::now() + timeout;
    std::unique_lock lock(state_->mutex);
    while (!state_->ended && !state_->stopped) {
      const auto now = steady_clock::now();
      if (now >= deadline) return {WaitResult::End::timed_out, "the collective did not complete"};
      if (on_gpu()) {
        ask_gpu();
      }
      if (state_->ended) break;
      state_->changed.wait_until(lock, on_gpu() ? now + kGpuIsAskedEvery : deadline);
    }
    if (state_->stopped) return {WaitResult::End::stopped, "stopped"};
    if (!state_->failed.empty()) return {WaitResult::End::disconnected, state_->failed};
    made_.host.copy_(made_.there);
    return {};
  }

 private:
  /// Polling interval: a GPU does not signal completion to the host.
  static constexpr std::chrono::microseconds kGpuIsAskedEvery{20};

  bool on_gpu() const { return made_.there.is_cuda(); }
  /// Checks the GPU's state. Requires: the mutex of state_ is held.
  void ask_gpu() {
    try {
      if (!work_->isCompleted()) return;
      const std::exception_ptr failed = work_->exception();
      if (failed) {
        std::rethrow_exception(failed);
      }
    } catch (const std::exception& error) {
      state_->failed = error.what();
    }
    state_->ended = true;
  }

  PendingCollectives& all_;
  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<CollectiveState> state_;
  const Staged made_;
};

class C10dGroup : public CollectiveGroup {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::Backend> group, at::Device device, PendingCollectives& all)
      : group_(std::move(group)), device_(device), all_(all) {}
  ~C10dGroup() override;
  std::unique_ptr<Request> all_reduce(Scratch data, ReduceType type, bool max) override {
    const Staged sum = copied(tensor(data, type));
    std::vector<at::Tensor> tensors = {sum.there};
    return begin(group_->allreduce(tensors, reduction<c10d::AllreduceOptions>(max)), sum);
  }
  std::unique_ptr<Request> reduce_scatter(Scratch in, Scratch out, ReduceType type,
                                          bool max) override;
  std::unique_ptr<Request> all_gather(Scratch in, Scratch out) override {
    at::Tensor from = copied(tensor(in)).there;
    Staged to = room(tensor(out));
    return begin(group_->_allgather_base(to.there, from), to);
  }
  std::unique_ptr<Request> all_to_all(Scratch in, std::span<const int64_t> bytes_to, Scratch out,
                                      std::span<const int64_t> bytes_from) override {
    at::Tensor from = copied(tensor(in)).there;
    Staged to = room(tensor(out));
    std::vector<int64_t> gives(bytes_to.begin(), bytes_to.end());
    std::vector<int64_t> takes(bytes_from.begin(), bytes_from.end());
    return begin(group_->alltoall_base(to.there, from, takes, gives), to);
  }

 private:
  template <class Options>
  static Options reduction(bool max) {
    Options options;
    options.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    return options;
  }
  static at::Tensor tensor(const Scratch& part, at::ScalarType type, int64_t size) {
    return at::from_blob(
        part.data, {part.bytes / size}, [memory = part.memory](void*) {},
        at::TensorOptions().dtype(type));
  }
  static at::Tensor tensor(const Scratch& part) { return tensor(part, at::kByte, 1); }
  static at::Tensor tensor(const Scratch& part, ReduceType type) {
    switch (type) {
      case ReduceType::f32:
        return tensor(part, at::kFloat, 4);
      case ReduceType::f64:
        return tensor(part, at::kDouble, 8);
      case ReduceType::bf16:
        return tensor(part, at::kBFloat16, 2);
      case ReduceType::f16:
        return tensor(part, at::kHalf, 2);
      case ReduceType::i32:
        return tensor(part, at::kInt, 4);
      case ReduceType::i64:
        return tensor(part, at::kLong, 8);
    }
    throw std::logic_error("unknown element type");
  }
  bool on_gpu() const { return device_.is_cuda(); }
  Staged copied(const at::Tensor& host) const { return {host, on_gpu() ? host.to(device_) : host}; }
  Staged room(const at::Tensor& host) const {
    return {host, on_gpu() ? at::empty_like(host, device_) : host};
  }
  std::unique_ptr<Request> begin(const c10::intrusive_ptr<c10d::Work>& work, Staged made) {
    last_ = std::make_shared<CollectiveState>();
    return std::make_unique<Collective>(all_, work, last_, std::move(made));
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  const at::Device device_;
  PendingCollectives& all_;
  std::shared_ptr<CollectiveState> last_;
};

/// Leaks a Gloo group with pending collectives: destroying it would wait for them. NCCL's groups
/// can be aborted.
C10dGroup::~C10dGroup() {
  bool ended = true;
  if (last_) {
    std::lock_guard lock(last_->mutex);
    ended = last_->ended;
  }
  if (!on_gpu()) {
    if (!ended) {
      group_.release();
    }
    return;
  }
  try {
    ended ? group_->shutdown() : group_->abort();
  } catch (const std::exception&) {
    // ignored, since the process ends
  }
}

/// Reduces by an all-reduce, and each rank takes its block, as Gloo does. Gloo's own cannot be
/// waited for with a timeout.
std::unique_ptr<Request> C10dGroup::reduce_scatter(Scratch in, Scratch out, ReduceType type,
                                                   bool max) {
  class Block : public Request {
   public:
    Block(std::unique_ptr<Request> sum, Scratch in, Scratch out, int rank)
        : sum_(std::move(sum)), in_(std::move(in)), out_(std::move(out)), rank_(rank) {}
    WaitResult wait(milliseconds timeout) override {
      WaitResult received = sum_->wait(timeout);
      if (received.end == WaitResult::End::completed) {
        std::memcpy(out_.data, in_.data + rank_ * out_.bytes, static_cast<size_t>(out_.bytes));
      }
      return received;
    }

   private:
    std::unique_ptr<Request> sum_;
    Scratch in_, out_;
    int rank_;
  };
  if (!on_gpu()) {
    return std::make_unique<Block>(all_reduce(in, type, max), in, out, group_->getRank());
  }
  at::Tensor from = copied(tensor(in, type)).there;
  Staged to = room(tensor(out, type));
  const auto options = reduction<c10d::ReduceScatterOptions>(max);
  return begin(group_->_reduce_scatter_base(to.there, from, options), to);
}

}  // namespace

std::unique_ptr<CollectiveGroup> c10d_group(c10::intrusive_ptr<c10d::Backend> group,
                                            at::Device device, PendingCollectives& all) {
  return std::make_unique<C10dGroup>(std::move(group), device, all);
}

}  // namespace hocket::comm
