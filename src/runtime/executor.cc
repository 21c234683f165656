// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "base/text.h"
#include "program/finalize.h"

namespace hocket::runtime {

using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::kNone;
using program::kNumLanes;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

/// A task with everything resolved to pointers.
struct Prepared {
  TaskId id = 0;
  kernels::KernelFn kernel = nullptr;  ///< null: communication
  kernels::KernelArgs args;
  comm::Call call;
  std::vector<kernels::TensorRef> operands;
  std::vector<void*> pointers;
  std::vector<int32_t> members;
  std::vector<std::pair<int, int64_t>> waits;        ///< (lane, finished tasks needed)
  std::vector<std::pair<std::byte*, int64_t>> dead;  ///< poisoned afterwards (tests)
};

struct LaneState {
  std::vector<Prepared> tasks;
  std::thread thread;
  bool ended = false;  ///< guarded by the rank's mutex: through with this step
  // Own cache lines: written by one thread, polled by others.
  alignas(64) std::atomic<int64_t> done{0};
};

}  // namespace

struct Executor::Impl {
  Impl(Executor& self, const Program& program, int32_t rank,
       std::shared_ptr<kernels::Backend> backend, comm::Communicator* communicator,
       PersistentStore& store, ExecutorOptions options)
      : self(self),
        program(program),
        cls_id(program.class_of(rank)),
        cls(program.classes[static_cast<size_t>(cls_id)]),
        rank(rank),
        backend(std::move(backend)),
        communicator(communicator),
        options(options),
        arena(cls.arena_bytes, program::planned_pages(program, cls_id)),
        times(cls.tasks.size()) {
    bind_buffers(store);
    prepare();
    for (int l = 0; l < kNumLanes; ++l) {
      if (!lanes[l].tasks.empty()) {
        lanes[l].thread = std::thread([this, l] { lane_main(l); });
      }
    }
  }

  /// Ends the lane threads; false if one hangs in a kernel and was left to itself.
  bool shut_down();
  int used_lanes() const;
  /// Tasks that have begun and not ended, by name. Needs the mutex.
  std::string unfinished() const;

  void bind_buffers(PersistentStore& store);
  void prepare();
  void prepare_poison();
  void lane_main(int lane);
  void run_lane(int lane);
  bool wait_for(const Prepared& task);
  void finish(int lane);
  void record_error(TaskId task, const std::string& what, Error::Cause cause);

  Executor& self;
  const Program& program;
  const int32_t cls_id;
  const RankClass& cls;
  const int32_t rank;
  std::shared_ptr<kernels::Backend> backend;
  comm::Communicator* communicator;
  const ExecutorOptions options;
  Region arena;
  std::vector<Region> owned;        // inputs and outputs
  std::vector<std::byte*> address;  // per buffer
  std::map<std::pair<std::string, int32_t>, BufferId> named;
  std::vector<TaskTime> times;
  LaneState lanes[kNumLanes];

  std::mutex mutex;
  std::condition_variable changed;
  int64_t step = 0;                        // guarded by mutex: steps started
  int lanes_finished = 0;                  // guarded by mutex
  bool stopping = false;                   // guarded by mutex
  bool hung = false;                       // guarded by mutex: a task of the step has not come back
  std::string error;                       // guarded by mutex: the first one
  Error::Cause cause = Error::Cause::own;  // guarded by mutex: of that one
  std::atomic<int> waiting{0};
  std::atomic<bool> cancelled{false};
};

void Executor::Impl::bind_buffers(PersistentStore& store) {
  for (size_t i = 0; i < cls.buffers.size(); ++i) {
    const Buffer& b = cls.buffers[i];
    switch (b.kind) {
      case BufferKind::step:
        // A buffer that no task uses has no place in the plan.
        address.push_back(b.offset == kNone ? nullptr : arena.data() + b.offset);
        break;
      case BufferKind::persistent:
        address.push_back(store.get(b.name, b.type, b.layout).memory.data());
        break;
      default:
        owned.emplace_back(std::max<int64_t>(round_up(b.type.bytes(), 64), 64));
        address.push_back(owned.back().data());
    }
    if (b.kind != BufferKind::step) {
      named[{b.name, b.micro_batch}] = static_cast<BufferId>(i);
    }
  }
}

void Executor::Impl::prepare() {
  if (!program::is_planned(program)) {
    fail_run("executor",
             "the program has no memory plan: step buffers without a place in the arena; "
             "try program::finalize");
  }
  const std::vector<int32_t> position = program::lane_positions(cls);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& t = cls.tasks[i];
    const program::Kind& kind = program.kind(t);
    Prepared p;
    p.id = static_cast<TaskId>(i);
    for (TaskId d : t.deps) {
      p.waits.push_back({static_cast<int>(cls.tasks[static_cast<size_t>(d)].lane),
                         position[static_cast<size_t>(d)] + 1});
    }
    if (t.in.size() != kind.in.size() || t.out.size() != kind.out.size()) {
      fail_run("executor", "{} has {} inputs and {} outputs; expected {} and {}",
               task_name(program, cls_id, p.id), t.in.size(), t.out.size(), kind.in.size(),
               kind.out.size());
    }
    for (size_t k = 0; k < t.in.size(); ++k) {
      p.operands.push_back({address[static_cast<size_t>(t.in[k])], &kind.in[k]});
    }
    for (size_t k = 0; k < t.out.size(); ++k) {
      p.operands.push_back({address[static_cast<size_t>(t.out[k])], &kind.out[k]});
    }
    if (program::is_communication(kind)) {
      if (!communicator) {
        fail_run("executor", "{} needs other ranks", task_name(program, cls_id, p.id));
      }
      for (const kernels::TensorRef& r : p.operands) {
        p.pointers.push_back(r.data);
      }
      if (t.group != kNone) {
        p.members = program.members(program.groups[static_cast<size_t>(t.group)], rank);
      }
      p.call.kind = &kind;
      p.call.lane = t.lane;
      if (t.peer_axis != kNone) {
        p.call.peer = program.peer_of(t, rank);
      }
      p.call.tag = t.tag;
    } else {
      p.kernel = backend->find(kind.op, options.device, {kind.in, kind.out});
      if (!p.kernel) {
        fail_run("executor", "no kernel for {} in {} ({})", kind.op,
                 to_string(program::compute_dtype(kind)), backend->describe());
      }
      p.args.attrs = &kind.attrs;
      p.args.accumulate = t.accumulate.bits();
      if (t.workspace != kNone) {
        p.args.workspace = arena.data() + t.workspace;
      }
      p.args.workspace_bytes = kind.workspace;
    }
    lanes[static_cast<int>(t.lane)].tasks.push_back(std::move(p));
  }
  // Spans are taken only now: the vectors do not move any more.
  for (LaneState& lane : lanes) {
    for (Prepared& p : lane.tasks) {
      const size_t n = cls.tasks[static_cast<size_t>(p.id)].in.size();
      if (p.kernel) {
        p.args.in = std::span(p.operands).first(n);
        p.args.out = std::span(p.operands).subspan(n);
      } else {
        p.call.in = std::span<void* const>(p.pointers).first(n);
        p.call.out = std::span<void* const>(p.pointers).subspan(n);
        p.call.members = p.members;
      }
    }
  }
  if (options.poison) {
    prepare_poison();
  }
}

void Executor::Impl::prepare_poison() {
  const auto at = program::clocks(cls);
  const auto position = program::lane_positions(cls);
  std::vector<TaskId> last(cls.buffers.size(), kNone);
  std::vector<program::Clock> used(cls.buffers.size());
  for (auto& c : used) {
    c.fill(-1);
  }
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& t = cls.tasks[i];
    for (const auto* list : {&t.in, &t.out}) {
      for (BufferId b : *list) {
        last[static_cast<size_t>(b)] = static_cast<TaskId>(i);
        auto& c = used[static_cast<size_t>(b)][static_cast<size_t>(t.lane)];
        c = std::max(c, position[i]);
      }
    }
  }
  std::vector<std::vector<BufferId>> dies(cls.tasks.size());
  for (size_t b = 0; b < cls.buffers.size(); ++b) {
    if (last[b] == kNone || cls.buffers[b].kind != BufferKind::step) continue;
    const size_t task = static_cast<size_t>(last[b]);
    bool after_all = true;
    for (int l = 0; l < kNumLanes; ++l) {
      int64_t known = at[task][static_cast<size_t>(l)];
      if (l == static_cast<int>(cls.tasks[task].lane)) {
        known = position[task];
      }
      after_all &= used[b][static_cast<size_t>(l)] <= known;
    }
    if (after_all) {
      dies[task].push_back(static_cast<BufferId>(b));
    }
  }
  for (LaneState& lane : lanes) {
    for (Prepared& p : lane.tasks) {
      for (BufferId b : dies[static_cast<size_t>(p.id)]) {
        p.dead.push_back(
            {address[static_cast<size_t>(b)], cls.buffers[static_cast<size_t>(b)].type.bytes()});
      }
    }
  }
}

int Executor::Impl::used_lanes() const {
  int used = 0;
  for (const LaneState& lane : lanes) {
    used += !lane.tasks.empty();
  }
  return used;
}

std::string Executor::Impl::unfinished() const {
  std::string names;
  for (const LaneState& lane : lanes) {
    if (size_t next = static_cast<size_t>(lane.done.load());
        !lane.ended && next < lane.tasks.size()) {
      names += (names.empty() ? "" : ", ") + task_name(program, cls_id, lane.tasks[next].id);
    }
  }
  return names;
}

bool Executor::Impl::shut_down() {
  {
    std::unique_lock lock(mutex);
    stopping = true;
    cancelled = true;
    changed.notify_all();
    if (hung && !changed.wait_for(lock, std::chrono::seconds(1),
                                  [&] { return lanes_finished == used_lanes(); })) {
      for (LaneState& lane : lanes) {
        if (lane.thread.joinable()) {
          lane.thread.detach();
        }
      }
      return false;
    }
  }
  for (LaneState& lane : lanes) {
    if (lane.thread.joinable()) {
      lane.thread.join();
    }
  }
  return true;
}

void Executor::Impl::lane_main(int lane) {
  const bool compute = lane == static_cast<int>(program::Lane::compute);
  backend->enter_thread(compute ? options.threads : 1);
  set_log_rank(rank);
  int64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || step > seen; });
      if (stopping) return;
      seen = step;
    }
    const int64_t began = now_ns();
    run_lane(lane);
    log_debug("step {}: lane {} ran {} of {} tasks in {}", seen,
              to_string(static_cast<program::Lane>(lane)), lanes[lane].done.load(),
              lanes[lane].tasks.size(), human_time(static_cast<double>(now_ns() - began) * 1e-9));
    std::lock_guard lock(mutex);
    lanes[lane].ended = true;
    ++lanes_finished;
    changed.notify_all();
  }
}

void Executor::Impl::run_lane(int lane) {
  for (Prepared& p : lanes[lane].tasks) {
    try {
      if (cancelled.load(std::memory_order_relaxed) || !wait_for(p)) return;
      TaskTime& time = times[static_cast<size_t>(p.id)];
      time.start_ns = now_ns();
      if (p.kernel) {
        p.kernel(p.args);
      } else {
        communicator->run(p.call);
      }
      time.end_ns = now_ns();
      for (auto& [data, bytes] : p.dead) {
        std::memset(data, 0xff, static_cast<size_t>(bytes));
      }
    } catch (const Error& e) {
      record_error(p.id, e.what(), e.cause());
      return;
    } catch (const std::exception& e) {
      record_error(p.id, e.what(), Error::Cause::own);
      return;
    }
    finish(lane);
  }
}

/// Waits for the counters of other lanes; false if the step was cancelled meanwhile.
bool Executor::Impl::wait_for(const Prepared& task) {
  for (const auto& [lane, needed] : task.waits) {
    auto& done = lanes[lane].done;
    for (int spin = 0; spin < 256; ++spin) {
      if (done.load(std::memory_order_acquire) >= needed) break;
    }
    if (done.load(std::memory_order_acquire) >= needed) continue;
    waiting.fetch_add(1);
    bool ok;
    {
      std::unique_lock lock(mutex);
      ok = changed.wait_for(lock, options.timeout, [&] {
        return done.load(std::memory_order_acquire) >= needed || cancelled;
      });
    }
    waiting.fetch_sub(1);
    if (cancelled) return false;
    if (!ok) {
      fail_run("executor", "waited {} s for task {} of lane {}", options.timeout.count() / 1000.0,
               needed - 1, to_string(static_cast<program::Lane>(lane)));
    }
  }
  return true;
}

void Executor::Impl::finish(int lane) {
  lanes[lane].done.fetch_add(1);  // sequentially consistent: pairs with `waiting`
  if (waiting.load() > 0) {
    std::lock_guard lock(mutex);
    changed.notify_all();
  }
}

void Executor::Impl::record_error(TaskId task, const std::string& what, Error::Cause why) {
  std::string text;
  {
    std::lock_guard lock(mutex);
    cancelled = true;
    changed.notify_all();
    // A lane that was left to itself may come back when the program and `self` are gone.
    if (stopping) return;
    text = fmt::format("rank {}: {}: {}", rank, task_name(program, cls_id, task), what);
    if (error.empty()) {
      error = text;
      cause = why;
    }
  }
  if (self.on_error) {
    self.on_error(text);
  }
}

Executor::Executor(const Program& program, int32_t rank,
                   const std::shared_ptr<kernels::Backend>& backend,
                   comm::Communicator* communicator, PersistentStore& store,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(*this, program, rank, backend, communicator, store, options)) {}
// A kernel that hangs keeps its memory: better a leak than a write to what is no longer ours.
Executor::~Executor() {
  if (!impl_->shut_down()) {
    static_cast<void>(impl_.release());
  }
}

const Buffer& Executor::buffer(std::string_view name, int32_t micro_batch) const {
  auto it = impl_->named.find({std::string(name), micro_batch});
  if (it == impl_->named.end()) {
    fail_run("executor", "rank {} has no buffer '{}' of micro-batch {}", impl_->rank, name,
             micro_batch);
  }
  return impl_->cls.buffers[static_cast<size_t>(it->second)];
}

bool Executor::has(std::string_view name, int32_t micro_batch) const {
  return impl_->named.count({std::string(name), micro_batch}) > 0;
}

void* Executor::input(std::string_view name, int32_t micro_batch) const {
  const Buffer& b = buffer(name, micro_batch);
  return impl_->address[static_cast<size_t>(&b - impl_->cls.buffers.data())];
}

const void* Executor::output(std::string_view name, int32_t micro_batch) const {
  return input(name, micro_batch);
}

void Executor::start() {
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  if (m.hung && m.lanes_finished != m.used_lanes()) {
    return;  // `wait` says so
  }
  if (m.options.poison && m.arena.data()) {
    std::memset(m.arena.data(), 0xff, static_cast<size_t>(m.arena.bytes()));
  }
  for (LaneState& lane : m.lanes) {
    lane.done = 0, lane.ended = false;
  }
  m.lanes_finished = 0;
  ++m.step;
  m.changed.notify_all();
}

void Executor::wait() {
  Impl& m = *impl_;
  const int used = m.used_lanes();
  std::unique_lock lock(m.mutex);
  // Waits inside lanes have the timeout themselves. A step that finishes no task for longer than
  // that hangs in a kernel.
  const auto window = m.options.timeout + std::chrono::seconds(1);
  int64_t before = -1;
  while (!m.hung && !m.changed.wait_for(lock, window, [&] { return m.lanes_finished == used; })) {
    int64_t progress = m.lanes_finished;
    for (const LaneState& lane : m.lanes) {
      progress += lane.done.load();
    }
    if (progress != std::exchange(before, progress)) continue;
    m.hung = m.cancelled = true;
    const std::string text =
        fmt::format("rank {}: {} has not ended, and nothing else has for {} s", m.rank,
                    m.unfinished(), std::chrono::duration<double>(window).count());
    m.error = m.error.empty() ? text : m.error + "; " + text;
    m.cause = Error::Cause::own;
    m.changed.notify_all();
    lock.unlock();
    if (on_error) {
      on_error(text);
    }
    lock.lock();
  }
  if (!m.error.empty()) throw Error(Error::Kind::kRun, "run", m.error, m.cause);
  if (m.cancelled) {
    throw Error(Error::Kind::kRun, "run", fmt::format("rank {}: the step was cancelled", m.rank),
                Error::Cause::stopped);
  }
}

void Executor::run_inline(const std::function<void(TaskId, const std::function<void()>&)>& visit) {
  Impl& m = *impl_;
  std::vector<Prepared*> order(m.cls.tasks.size());
  for (LaneState& lane : m.lanes) {
    for (Prepared& p : lane.tasks) {
      order[static_cast<size_t>(p.id)] = &p;
    }
  }
  m.backend->enter_thread(m.options.threads);
  for (Prepared* p : order) {
    visit(p->id, [&] {
      if (p->kernel) {
        p->kernel(p->args);
      } else {
        m.communicator->run(p->call);
      }
    });
  }
}

void Executor::cancel() {
  std::lock_guard lock(impl_->mutex);
  impl_->cancelled = true;
  impl_->changed.notify_all();
}

const std::vector<TaskTime>& Executor::times() const { return impl_->times; }
int64_t Executor::arena_resident_bytes() const { return impl_->arena.resident_bytes(); }
int64_t Executor::inputs_outputs_resident_bytes() const {
  int64_t bytes = 0;
  for (const Region& r : impl_->owned) {
    bytes += r.resident_bytes();
  }
  return bytes;
}

LocalRun::LocalRun(const Program& program, std::shared_ptr<kernels::Backend> backend,
                   std::vector<PersistentStore>& stores, ExecutorOptions options)
    : stores_(stores),
      world_(std::make_unique<comm::LocalWorld>(program.mesh.size(), options.timeout)) {
  HOCKET_CHECK(static_cast<int32_t>(stores.size()) == program.mesh.size(), "{} stores for {} ranks",
               stores.size(), program.mesh.size());
  for (int32_t r = 0; r < program.mesh.size(); ++r) {
    executors_.push_back(std::make_unique<Executor>(program, r, backend, &world_->communicator(r),
                                                    stores[static_cast<size_t>(r)], options));
    executors_.back()->on_error = [this](const std::string& what) {
      world_->abort(what);
      for (auto& e : executors_) {
        e->cancel();
      }
    };
  }
}

program::Memory LocalRun::measured(int32_t rank) const {
  const Executor& executor = *executors_[static_cast<size_t>(rank)];
  program::Memory m;
  m.persistent = stores_[static_cast<size_t>(rank)].resident_bytes();
  m.inputs_outputs = executor.inputs_outputs_resident_bytes();
  m.step_buffers = executor.arena_resident_bytes();
  m.messages = world_->peak_message_bytes(rank);
  return m;
}

LocalRun::~LocalRun() { world_->abort("the run has ended"); }

void LocalRun::step() {
  for (auto& e : executors_) {
    e->start();
  }
  std::optional<Error> first;
  for (auto& e : executors_) {
    try {
      e->wait();
    } catch (const Error& error) {
      // The rank that failed tells more than those it stopped.
      if (!first ||
          (first->cause() == Error::Cause::stopped && error.cause() == Error::Cause::own)) {
        first = error;
      }
    }
  }
  if (first) throw Error(Error::Kind::kRun, "step", first->what());
}

}  // namespace hocket::runtime
