// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <algorithm>
#include <array>
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

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

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
        cls(program.classes[cls_id]),
        rank(rank),
        backend(std::move(backend)),
        communicator(communicator),
        options(options),
        arenas{region_of(program::Space::device), region_of(program::Space::host)},
        symbol_values(program.symbols.size(), 0),
        times(cls.tasks.size()) {
    bind_buffers(store);
    prepare();
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (!lanes[lane].tasks.empty()) {
        lanes[lane].thread = std::thread([this, lane] { lane_main(lane); });
      }
    }
  }

  /// Ends the lane threads; false if one hangs in a kernel and was left to itself.
  bool shut_down();
  int used_lanes() const;
  /// Tasks that have begun and not ended, by name. Needs the mutex.
  std::string unfinished() const;

  Region region_of(program::Space space) const {
    return Region(cls.arena(space), program::planned_pages(program, cls_id, space));
  }
  void bind_buffers(PersistentStore& store);
  const program::Kind& kind_in_step(const Task& task);
  void resolve_symbols();
  void prepare();
  void prepare_poison();
  void lane_main(int lane);
  void run_lane(int lane);
  bool wait_for(const Prepared& task);
  void finish(int lane);
  void record_error(TaskId task, const std::string& what, Error::Cause cause);

  Executor& self;
  const Program& program;
  const program::ClassId cls_id;
  const RankClass& cls;
  const int32_t rank;
  std::shared_ptr<kernels::Backend> backend;
  comm::Communicator* communicator;
  const ExecutorOptions options;
  std::array<Region, program::kNumSpaces> arenas;
  std::vector<Region> owned;        // inputs and outputs
  std::vector<std::byte*> address;  // per buffer
  std::map<std::pair<std::string, int32_t>, BufferId> named;
  std::vector<int64_t> symbol_values;
  // Of kinds with symbols among their dims: with the dims of the step. What they are called with
  // points here, so they stay where they are.
  std::map<program::KindId, std::unique_ptr<program::Kind>> in_step;
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
    const Buffer& buffer = cls.buffers[i];
    switch (buffer.kind) {
      case BufferKind::step:
        // A buffer that no task uses has no place in the plan.
        address.push_back(buffer.offset == kNone
                              ? nullptr
                              : arenas[place_of(buffer.space)].data() + buffer.offset);
        break;
      case BufferKind::persistent:
        address.push_back(store.get(buffer.name, buffer.type, buffer.layout).memory.data());
        break;
      default:
        owned.emplace_back(std::max<int64_t>(round_up(buffer.type.bytes(), 64), 64));
        address.push_back(owned.back().data());
    }
    if (buffer.kind != BufferKind::step) {
      named[{buffer.name, buffer.micro_batch}] = i;
    }
  }
}

/// The kind of a task as its kernel sees it: the program's own, or a copy that resolve_symbols
/// gives the dims of each step.
const program::Kind& Executor::Impl::kind_in_step(const Task& task) {
  const program::Kind& kind = program.kind(task);
  if (!graph::any_symbolic(kind.in) && !graph::any_symbolic(kind.out)) return kind;
  for (const auto* types : {&kind.in, &kind.out}) {
    for (const graph::TensorType& type : *types) {
      const std::string why = graph::symbols_differ(type, program.symbols);
      if (!why.empty()) fail_run("executor", "{}: {}", kind.op, why);
    }
  }
  std::unique_ptr<program::Kind>& copy = in_step[task.kind];
  if (!copy) {
    copy = std::make_unique<program::Kind>(kind);
  }
  return *copy;
}

void Executor::Impl::resolve_symbols() {
  for (size_t i = 0; i < symbol_values.size(); ++i) {
    if (symbol_values[i] == 0) {
      fail_run("executor", "symbol {} has no value; try set_symbol before the step",
               program.symbols[i].name);
    }
  }
  for (auto& [id, copy] : in_step) {
    const program::Kind& kind = program.kinds[id];
    const auto resolve = [&](const std::vector<graph::TensorType>& from,
                             std::vector<graph::TensorType>& to) {
      for (size_t i = 0; i < from.size(); ++i) {
        for (size_t d = 0; d < from[i].dims.size(); ++d) {
          to[i].dims[d] = from[i].dims[d].at(symbol_values);
        }
      }
    };
    resolve(kind.in, copy->in);
    resolve(kind.out, copy->out);
  }
}

void Executor::Impl::prepare() {
  // Everything that a step needs is looked up here, once: the kernel or the communication of every
  // task, pointers to its operands, and its dependencies as counters: lanes are in order, so that a
  // task of another lane has ended when enough tasks of that lane have.
  if (!program::is_planned(program)) {
    fail_run("executor",
             "the program has no memory plan: step buffers without a place in the arena; "
             "try program::finalize");
  }
  const std::vector<int32_t> position = program::lane_positions(cls);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    const program::Kind& kind = kind_in_step(task);
    Prepared prepared;
    prepared.id = i;
    for (TaskId dep : task.deps) {
      prepared.waits.push_back({static_cast<int>(cls.tasks[dep].lane), position[dep] + 1});
    }
    if (task.in.size() != kind.in.size() || task.out.size() != kind.out.size()) {
      fail_run("executor", "{} has {} inputs and {} outputs; expected {} and {}",
               task_name(program, cls_id, prepared.id), task.in.size(), task.out.size(),
               kind.in.size(), kind.out.size());
    }
    for (size_t k = 0; k < task.in.size(); ++k) {
      prepared.operands.push_back({address[task.in[k]], &kind.in[k]});
    }
    for (size_t k = 0; k < task.out.size(); ++k) {
      prepared.operands.push_back({address[task.out[k]], &kind.out[k]});
    }
    if (program::is_communication(kind)) {
      if (!communicator) {
        fail_run("executor", "{} needs other ranks", task_name(program, cls_id, prepared.id));
      }
      for (const kernels::TensorRef& operand : prepared.operands) {
        prepared.pointers.push_back(operand.data);
      }
      if (task.group != kNone) {
        prepared.members = program.members(program.groups[task.group], rank);
      }
      prepared.call.kind = &kind;
      prepared.call.lane = task.lane;
      if (task.peer_axis != kNone) {
        prepared.call.peer = program.peer_of(task, rank);
      }
      prepared.call.tag = task.tag;
    } else {
      prepared.kernel = backend->find(kind.op, options.device, {kind.in, kind.out});
      if (!prepared.kernel) {
        fail_run("executor", "no kernel for {} ({})", program::types_text(kind),
                 backend->describe());
      }
      prepared.args.attrs = &kind.attrs;
      prepared.args.accumulate = task.accumulate.bits();
      if (task.workspace != kNone) {
        prepared.args.workspace = arenas[place_of(program::Space::device)].data() + task.workspace;
      }
      prepared.args.workspace_bytes = kind.workspace;
    }
    lanes[static_cast<int>(task.lane)].tasks.push_back(std::move(prepared));
  }
  // Spans are taken only now: the vectors do not move any more.
  for (LaneState& lane : lanes) {
    for (Prepared& prepared : lane.tasks) {
      const size_t inputs = cls.tasks[prepared.id].in.size();
      if (prepared.kernel) {
        prepared.args.in = std::span(prepared.operands).first(inputs);
        prepared.args.out = std::span(prepared.operands).subspan(inputs);
      } else {
        prepared.call.in = std::span<void* const>(prepared.pointers).first(inputs);
        prepared.call.out = std::span<void* const>(prepared.pointers).subspan(inputs);
        prepared.call.members = prepared.members;
      }
    }
  }
  if (options.poison) {
    prepare_poison();
  }
}

void Executor::Impl::prepare_poison() {
  // A buffer's memory is overwritten after the last task (in issue order) that uses it, if that
  // task is known to come after all other uses: those of its own lane, and those in its clock.
  // Where it is not, no single task knows the buffer to be dead, and it keeps its content.
  const auto at = program::clocks(cls);
  const auto position = program::lane_positions(cls);
  std::vector<TaskId> last(cls.buffers.size(), kNone);
  std::vector<program::Clock> used(cls.buffers.size());
  for (program::Clock& clock : used) {
    clock.fill(-1);
  }
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    for (const auto* list : {&task.in, &task.out}) {
      for (BufferId buffer : *list) {
        last[buffer] = i;
        int32_t& latest = used[buffer][place_of(task.lane)];
        latest = std::max(latest, position[i]);
      }
    }
  }
  std::vector<std::vector<BufferId>> dies(cls.tasks.size());
  for (size_t buffer = 0; buffer < cls.buffers.size(); ++buffer) {
    if (last[buffer] == kNone || cls.buffers[buffer].kind != BufferKind::step) continue;
    const size_t task = static_cast<size_t>(last[buffer]);
    bool after_all = true;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      int64_t known = at[task][lane];
      if (lane == static_cast<int>(cls.tasks[task].lane)) {
        known = position[task];
      }
      after_all &= used[buffer][lane] <= known;
    }
    if (after_all) {
      dies[task].push_back(buffer);
    }
  }
  for (LaneState& lane : lanes) {
    for (Prepared& prepared : lane.tasks) {
      for (BufferId buffer : dies[prepared.id]) {
        prepared.dead.push_back({address[buffer], cls.buffers[buffer].type.bytes()});
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
    const size_t next = static_cast<size_t>(lane.done.load());
    if (!lane.ended && next < lane.tasks.size()) {
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
  // The first error of any lane cancels the step for all: the others return at their next task, or
  // from their wait. A task that fails is not counted as done.
  for (Prepared& prepared : lanes[lane].tasks) {
    try {
      if (cancelled.load(std::memory_order_relaxed) || !wait_for(prepared)) return;
      TaskTime& time = times[prepared.id];
      time.start_ns = now_ns();
      if (prepared.kernel) {
        prepared.kernel(prepared.args);
      } else {
        communicator->run(prepared.call);
      }
      time.end_ns = now_ns();
      for (auto& [data, bytes] : prepared.dead) {
        std::memset(data, 0xff, static_cast<size_t>(bytes));
      }
    } catch (const Error& error) {
      record_error(prepared.id, error.what(), error.cause());
      return;
    } catch (const std::exception& exception) {
      record_error(prepared.id, exception.what(), Error::Cause::own);
      return;
    }
    finish(lane);
  }
}

/// Waits for the counters of other lanes; false if the step was cancelled meanwhile. Most waits are
/// short, so a lane looks a while before it sleeps; `waiting` spares finish() the lock when nobody
/// sleeps.
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
  std::function<void(const std::string&)> on_error;
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
    on_error = self.on_error;  // `self` may be gone when the lock is
  }
  if (on_error) {
    on_error(text);
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
    [[maybe_unused]] const Impl* kept = impl_.release();
#ifdef __SANITIZE_ADDRESS__
    __lsan_ignore_object(kept);
#endif
  }
}

const Buffer& Executor::buffer(std::string_view name, int32_t micro_batch) const {
  auto it = impl_->named.find({std::string(name), micro_batch});
  if (it == impl_->named.end()) {
    fail_run("executor", "rank {} has no buffer '{}' of micro-batch {}", impl_->rank, name,
             micro_batch);
  }
  return impl_->cls.buffers[it->second];
}

const std::vector<Buffer>& Executor::buffers() const { return impl_->cls.buffers; }

bool Executor::has(std::string_view name, int32_t micro_batch) const {
  return impl_->named.count({std::string(name), micro_batch}) > 0;
}

void* Executor::input(std::string_view name, int32_t micro_batch) const {
  const Buffer& named = buffer(name, micro_batch);
  return impl_->address[&named - impl_->cls.buffers.data()];
}

const void* Executor::output(std::string_view name, int32_t micro_batch) const {
  return input(name, micro_batch);
}

void Executor::set_symbol(std::string_view name, int64_t value) {
  for (size_t i = 0; i < impl_->program.symbols.size(); ++i) {
    const graph::Symbol& symbol = impl_->program.symbols[i];
    if (symbol.name != name) continue;
    graph::expect_value(symbol, value);
    impl_->symbol_values[i] = value;
    return;
  }
  fail_run("executor", "the program has no symbol '{}'", name);
}

const std::vector<int64_t>& Executor::symbol_values() const { return impl_->symbol_values; }

void Executor::start() {
  Impl& impl = *impl_;
  std::lock_guard lock(impl.mutex);
  if (impl.hung && impl.lanes_finished != impl.used_lanes()) {
    return;  // `wait` says so
  }
  impl.resolve_symbols();
  for (const Region& arena : impl.arenas) {
    if (impl.options.poison && arena.data()) {
      std::memset(arena.data(), 0xff, static_cast<size_t>(arena.bytes()));
    }
  }
  for (LaneState& lane : impl.lanes) {
    lane.done = 0;
    lane.ended = false;
  }
  impl.lanes_finished = 0;
  ++impl.step;
  impl.changed.notify_all();
}

void Executor::wait() {
  Impl& impl = *impl_;
  const int used = impl.used_lanes();
  std::unique_lock lock(impl.mutex);
  // Waits inside lanes have the timeout themselves. A step that finishes no task for longer than
  // that hangs in a kernel.
  const auto window = impl.options.timeout + std::chrono::seconds(1);
  int64_t before = -1;
  while (!impl.hung &&
         !impl.changed.wait_for(lock, window, [&] { return impl.lanes_finished == used; })) {
    int64_t progress = impl.lanes_finished;
    for (const LaneState& lane : impl.lanes) {
      progress += lane.done.load();
    }
    if (progress != std::exchange(before, progress)) continue;
    impl.hung = true;
    impl.cancelled = true;
    const std::string text =
        fmt::format("rank {}: {} has not ended, and nothing else has for {} s", impl.rank,
                    impl.unfinished(), std::chrono::duration<double>(window).count());
    impl.error = impl.error.empty() ? text : impl.error + "; " + text;
    impl.cause = Error::Cause::own;
    impl.changed.notify_all();
    lock.unlock();
    if (on_error) {
      on_error(text);
    }
    lock.lock();
  }
  if (!impl.error.empty()) throw Error(Error::Kind::kRun, "run", impl.error, impl.cause);
  if (impl.cancelled) {
    throw Error(Error::Kind::kRun, "run", fmt::format("rank {}: the step was cancelled", impl.rank),
                Error::Cause::stopped);
  }
}

void Executor::run_inline(const std::function<void(TaskId, const std::function<void()>&)>& visit) {
  Impl& impl = *impl_;
  impl.resolve_symbols();
  std::vector<Prepared*> order(impl.cls.tasks.size());
  for (LaneState& lane : impl.lanes) {
    for (Prepared& prepared : lane.tasks) {
      order[prepared.id] = &prepared;
    }
  }
  impl.backend->enter_thread(impl.options.threads);
  for (Prepared* prepared : order) {
    visit(prepared->id, [&] {
      if (prepared->kernel) {
        prepared->kernel(prepared->args);
      } else {
        impl.communicator->run(prepared->call);
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

program::Memory Executor::measured() const {
  program::Memory memory;
  memory.step_buffers = impl_->arenas[place_of(program::Space::device)].resident_bytes();
  memory.host = impl_->arenas[place_of(program::Space::host)].resident_bytes();
  size_t next = 0;  // inputs and outputs have their regions in the order of the buffers
  for (const Buffer& buffer : impl_->cls.buffers) {
    if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::output) continue;
    const int64_t bytes = impl_->owned[next++].resident_bytes();
    (buffer.space == program::Space::host ? memory.host : memory.inputs_outputs) += bytes;
  }
  return memory;
}

LocalRun::LocalRun(const Program& program, std::shared_ptr<kernels::Backend> backend,
                   std::vector<PersistentStore>& stores, ExecutorOptions options)
    : stores_(stores),
      world_(std::make_unique<comm::LocalWorld>(program.mesh.size(), options.timeout)) {
  HOCKET_CHECK(static_cast<int32_t>(stores.size()) == program.mesh.size(), "{} stores for {} ranks",
               stores.size(), program.mesh.size());
  for (int32_t rank = 0; rank < program.mesh.size(); ++rank) {
    executors_.push_back(std::make_unique<Executor>(
        program, rank, backend, &world_->communicator(rank), stores[rank], options));
    executors_.back()->on_error = [this](const std::string& what) {
      world_->abort(what);
      for (auto& executor : executors_) {
        executor->cancel();
      }
    };
  }
}

void LocalRun::set_symbol(std::string_view name, int64_t value) {
  for (auto& executor : executors_) {
    executor->set_symbol(name, value);
  }
}

program::Memory LocalRun::measured(int32_t rank) const {
  program::Memory memory = executors_[rank]->measured();
  memory.persistent = stores_[rank].resident_bytes();
  for (const Buffer& buffer : executors_[rank]->buffers()) {
    if (buffer.kind != BufferKind::persistent || buffer.space != program::Space::host) continue;
    const int64_t bytes = stores_[rank].find(buffer.name)->memory.resident_bytes();
    memory.persistent -= bytes;
    memory.host += bytes;
  }
  memory.messages = world_->peak_message_bytes(rank);
  return memory;
}

LocalRun::~LocalRun() { world_->abort("the run has ended"); }

void LocalRun::step() {
  for (auto& executor : executors_) {
    executor->start();
  }
  std::optional<Error> first;
  for (auto& executor : executors_) {
    try {
      executor->wait();
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
