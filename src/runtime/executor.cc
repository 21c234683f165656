// SPDX-License-Identifier: Apache-2.0
// Executor of a program on one rank. prepare() resolves every task once: kernel, operand addresses,
// dependencies, communication calls. start() begins a step: one thread per lane walks its tasks in
// issue order, waits for dependencies in other lanes, and issues each task to the lane's queue of
// the device, or to the transport. wait() returns when all lanes have finished, or rethrows the
// first error. Addresses are updated when the rank's arenas or the owner of its inputs change.
#include "runtime/executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/math.h"
#include "program/finalize.h"
#include "program/memory.h"
#include "program/parts.h"
#include "program/transfer.h"
#include "program/views.h"

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

/// Minimum duration of a task on its lane.
struct MinDuration {
  TaskTime* time = nullptr;
  int64_t ns = 0;
};

/// Task with all references resolved to pointers.
struct PreparedTask {
  TaskId id = 0;
  kernels::KernelFn kernel = nullptr;  ///< null: communication
  kernels::KernelArgs args;
  comm::Call call;
  std::vector<kernels::TensorRef> operands;
  std::vector<void*> pointers;
  std::vector<int32_t> members;
  std::vector<comm::Copy> copies;  ///< of a transfer: received elements
  std::vector<comm::Copy> given;   ///< of a transfer: sent elements
  std::vector<int64_t> tokens;     ///< of row counts
  std::vector<kernels::LetterOffset> piece_offsets;
  std::vector<std::vector<int64_t>> strides;  ///< by operand; empty: contiguous
  std::vector<Event> waits;                   ///< for tasks of other lanes
  std::vector<BufferId> last_used;            ///< buffers without later uses, poisoned in tests
  std::vector<kernels::KernelArgs> poisoned;  ///< memory of those buffers
  MinDuration min_duration;                   ///< of a kernel on an emulated device
  kernels::KernelArgs min_duration_args;      ///< points to min_duration
};

/// Fills the workspace with bytes that are NaN in every floating-point type.
void fill_with_poison(const kernels::KernelArgs& args) {
  std::memset(args.workspace, 0xff, static_cast<size_t>(args.workspace_bytes));
}

/// Delays until the previous task in the queue has lasted its emulated duration, and sets its end
/// time. The thread sleeps, since there are more ranks than cores.
void await_min_duration(const kernels::KernelArgs& args) {
  const auto* of = reinterpret_cast<const MinDuration*>(args.workspace);
  const int64_t left = of->time->start_ns + of->ns - now_ns();
  if (left > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }
  of->time->end_ns = now_ns();
}

/// Returns whether an output of one call overlaps an input of the other.
bool writes_what_is_read(const comm::Call& writer, const comm::Call& reader) {
  for (size_t o = 0; o < writer.out.size(); ++o) {
    const auto* out = static_cast<const std::byte*>(writer.out[o]);
    for (size_t i = 0; i < reader.in.size(); ++i) {
      const auto* in = static_cast<const std::byte*>(reader.in[i]);
      const bool apart =
          out + writer.kind->out[o].bytes() <= in || in + reader.kind->in[i].bytes() <= out;
      if (!apart) return true;
    }
  }
  return false;
}

bool is_input_or_output(const Buffer& buffer) {
  return buffer.kind == BufferKind::input || buffer.kind == BufferKind::output;
}

}  // namespace

/// Step of a program on a rank, executed by the lanes. The addresses of its buffers change when the
/// rank's arenas do.
struct Executor::Impl : Step {
  Impl(Rank& rank, std::shared_ptr<PersistentStore> store, std::shared_ptr<const Program> program,
       std::shared_ptr<const EmulatedDevice> emulated);

  size_t size(int lane) const override { return lanes[lane].size(); }
  std::string task_name(int lane, size_t position) const override {
    return program::task_name(*program, cls_id, lanes[lane][position].id);
  }
  void run(int lane, Lanes& rank_lanes) override;

  void name_buffers();
  const program::Kind& kind_in_step(const Task& task);
  void require_symbols() const;
  void resolve_symbols();
  void prepare(Rank& rank);
  void prepare(Rank& rank, TaskId id, const std::vector<int32_t>& position);
  std::map<BufferId, std::vector<int64_t>> tokens_by_counts() const;
  void prepare_poison();
  void place(const Rank& rank);
  void place(PreparedTask& prepared);
  bool issue(PreparedTask& prepared, int lane, Lanes& rank_lanes);
  const comm::Call* next_call(const PreparedTask& prepared, int lane) const;
  std::byte* address_of(BufferId id) const;
  BufferId find(std::string_view name, int32_t micro_batch) const;

  const std::shared_ptr<const Program> program;
  const program::ClassId cls_id;
  const RankClass& cls;
  const int32_t rank_id;
  const std::shared_ptr<kernels::Backend> backend;
  comm::Communicator* const communicator;
  const std::shared_ptr<const EmulatedDevice> emulated;  ///< null: no emulation
  std::map<std::pair<std::string, int32_t>, BufferId> named;
  std::vector<int64_t> named_offset;  // by buffer: offset of inputs and outputs in their arena
  std::array<int64_t, program::kNumSpaces> named_bytes{};
  std::vector<std::byte*> persistent;  // by buffer
  std::vector<TaskTime> times;
  std::array<std::vector<PreparedTask>, kNumLanes> lanes;
  program::Transfers transfers;
  bool has_inputs = false;
  std::vector<int64_t> symbol_values;
  // Kinds with symbolic dims, with the values of the current step. Kernel arguments point to them,
  // so their addresses must not change.
  std::map<program::KindId, std::unique_ptr<program::Kind>> in_step;

  // State for which the tasks' pointers were resolved: arenas, generations, values of symbols.
  const std::shared_ptr<PersistentStore> store;
  std::array<std::byte*, program::kNumSpaces> arena{}, inputs_outputs{};
  int64_t arena_generation = -1, named_generation = -1;
  bool views_move = false;          ///< views have offsets that depend on symbols
  std::vector<int64_t> placed_for;  ///< symbol values
  /// Arenas in use during a step: a lane that hangs in a kernel must not lose them.
  std::vector<std::shared_ptr<Memory>> in_use;
};

Executor::Impl::Impl(Rank& rank, std::shared_ptr<PersistentStore> tensors,
                     std::shared_ptr<const Program> of,
                     std::shared_ptr<const EmulatedDevice> emulated_device)
    : program(std::move(of)),
      cls_id(program->class_of(rank.id_)),
      cls(program->classes[cls_id]),
      rank_id(rank.id_),
      backend(rank.backend_),
      communicator(rank.communicator_),
      emulated(std::move(emulated_device)),
      times(cls.tasks.size()),
      transfers(*program),
      symbol_values(program->symbols.size(), 0),
      store(std::move(tensors)) {
  if (!program::is_planned(*program)) {
    fail_run("executor",
             "the program has no memory plan: step buffers without a place in the arena; "
             "try hocket graph --finish FILE");
  }
  name_buffers();
  program::expect_no_parts(*program, "executor");
  prepare(rank);
  if (rank.options_.poison) {
    prepare_poison();
  }
}

/// Assigns memory to named buffers: persistent ones are in the store, inputs and outputs are laid
/// out consecutively, each in pages of its own.
void Executor::Impl::name_buffers() {
  store->expect_same_layouts(*program);
  store->add(*program);
  named_offset.assign(cls.buffers.size(), kNone);
  persistent.assign(cls.buffers.size(), nullptr);
  for (size_t i = 0; i < cls.buffers.size(); ++i) {
    const Buffer& buffer = cls.buffers[i];
    if (buffer.kind == BufferKind::view) {
      views_move = views_move || program::moves_with_symbols(buffer);
    }
    if (buffer.kind == BufferKind::step || buffer.kind == BufferKind::view) continue;
    named[{buffer.name, buffer.micro_batch}] = i;
    if (buffer.kind == BufferKind::persistent) {
      persistent[i] = store->get(buffer, *program).data;
      continue;
    }
    has_inputs = has_inputs || buffer.kind == BufferKind::input;
    int64_t& bytes = named_bytes[place_of(buffer.space)];
    named_offset[i] = bytes;
    bytes += program::whole_pages(std::max<int64_t>(buffer.type.bytes(), 1));
  }
}

/// Returns a task's kind as its kernel sees it: the program's own, or a copy that resolve_symbols
/// updates with each step's dims.
const program::Kind& Executor::Impl::kind_in_step(const Task& task) {
  const program::Kind& kind = program->kind(task);
  if (!graph::any_symbolic(kind.in) && !graph::any_symbolic(kind.out)) return kind;
  for (const auto* types : {&kind.in, &kind.out}) {
    for (const graph::TensorType& type : *types) {
      const std::string why = graph::symbols_differ(type, program->symbols);
      if (!why.empty()) fail_run("executor", "{}: {}", kind.op, why);
    }
  }
  std::unique_ptr<program::Kind>& copy = in_step[task.kind];
  if (!copy) {
    copy = std::make_unique<program::Kind>(kind);
  }
  return *copy;
}

void Executor::Impl::require_symbols() const {
  for (size_t i = 0; i < symbol_values.size(); ++i) {
    if (symbol_values[i] == 0) {
      fail_run("executor", "symbol {} has no value; try set_symbol before the step",
               program->symbols[i].name);
    }
  }
}

/// Sets the dims of this step. Called between steps, since kernels read the types.
void Executor::Impl::resolve_symbols() {
  for (auto& [id, copy] : in_step) {
    const program::Kind& kind = program->kinds[id];
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

void Executor::Impl::prepare(Rank& rank) {
  // Resolves everything that a step needs, except for addresses: the kernel or communication of
  // every task, and its dependencies as events. Lanes are in order, so a task of another lane has
  // ended when enough tasks of that lane have.
  const std::vector<int32_t> position = program::lane_positions(cls);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    prepare(rank, i, position);
  }
  const auto tokens = tokens_by_counts();
  // Spans are created only now, since the vectors no longer move.
  for (std::vector<PreparedTask>& lane : lanes) {
    for (PreparedTask& prepared : lane) {
      const size_t inputs = cls.tasks[prepared.id].in.size();
      for (size_t i = 0; i < prepared.operands.size(); ++i) {
        prepared.operands[i].strides =
            prepared.strides[i].empty() ? nullptr : prepared.strides[i].data();
      }
      prepared.args.piece_offsets = prepared.piece_offsets;
      prepared.min_duration_args.workspace = reinterpret_cast<std::byte*>(&prepared.min_duration);
      if (const auto& out = cls.tasks[prepared.id].out; !prepared.kernel && !out.empty()) {
        const auto counts = tokens.find(out[0]);
        prepared.tokens = counts == tokens.end() ? std::vector<int64_t>() : counts->second;
      }
      if (prepared.kernel) {
        prepared.args.in = std::span(prepared.operands).first(inputs);
        prepared.args.out = std::span(prepared.operands).subspan(inputs);
      } else {
        prepared.call.in = std::span<void* const>(prepared.pointers).first(inputs);
        prepared.call.out = std::span<void* const>(prepared.pointers).subspan(inputs);
        prepared.call.members = prepared.members;
        prepared.call.copies = prepared.copies;
        prepared.call.given = prepared.given;
        prepared.call.tokens = prepared.tokens;
        prepared.call.task = prepared.id;
      }
    }
  }
}

/// Returns, for row-count buffers that uneven exchanges read, the tokens of each member.
std::map<BufferId, std::vector<int64_t>> Executor::Impl::tokens_by_counts() const {
  std::map<BufferId, std::vector<int64_t>> tokens;
  for (const Task& task : cls.tasks) {
    const program::Kind& kind = program->kind(task);
    if (!program::is_communication(kind) || !comm::op(kind.communication).needs_sizes) continue;
    for (const char* attribute : {comm::kSlots, comm::kBlocks}) {
      if (std::vector<int64_t> lengths = comm::lengths_of(kind.attrs, attribute);
          !lengths.empty()) {
        tokens[task.in[1]] = std::move(lengths);
      }
    }
  }
  return tokens;
}

void Executor::Impl::prepare(Rank& rank, TaskId id, const std::vector<int32_t>& position) {
  // Resolves the task's dependencies, its operands (inputs, then outputs), and its executor: the
  // communicator with the group's ranks, or a kernel of the rank's device.
  const Task& task = cls.tasks[id];
  const program::Kind& kind = kind_in_step(task);
  const auto name = [&] { return program::task_name(*program, cls_id, id); };
  if (task.in.size() != kind.in.size() || task.out.size() != kind.out.size()) {
    fail_run("executor", "{} has {} inputs and {} outputs; expected {} and {}", name(),
             task.in.size(), task.out.size(), kind.in.size(), kind.out.size());
  }
  PreparedTask prepared;
  prepared.id = id;
  for (TaskId dep : task.deps) {
    prepared.waits.push_back(
        rank.lanes_->event(static_cast<int>(cls.tasks[dep].lane), position[dep] + 1));
  }
  for (const graph::TensorType& type : kind.in) {
    prepared.operands.push_back({nullptr, &type});
  }
  for (const graph::TensorType& type : kind.out) {
    prepared.operands.push_back({nullptr, &type});
  }
  for (const auto* list : {&task.in, &task.out}) {
    for (BufferId operand : *list) {
      const Buffer& buffer = cls.buffers[operand];
      prepared.strides.push_back(buffer.kind == BufferKind::view ? program::strides_of(cls, buffer)
                                                                 : std::vector<int64_t>{});
      if (prepared.strides.back().empty() || !program::is_communication(kind)) continue;
      fail_run("executor", "{} moves a view with gaps; expected one without, or a copy", name());
    }
  }
  for (const program::PieceOffset& begin : task.piece_offsets) {
    prepared.piece_offsets.push_back(
        {begin.letter, program->begin_at(task, begin.letter, rank_id)});
  }
  if (program::is_communication(kind)) {
    if (!communicator) {
      fail_run("executor", "{} needs other ranks", name());
    }
    prepared.pointers.resize(prepared.operands.size());
    if (task.group != kNone) {
      prepared.members = program->members(program->groups[task.group], rank_id);
    }
    if (comm::op(kind.communication).role == comm::Role::between) {
      const program::Transfer transfer = transfers.of(cls_id, id);
      auto copies = transfer.copies(rank_id);
      if (!copies) fail_run("executor", "{} receives elements that no rank sends", name());
      prepared.copies = std::move(*copies);
      prepared.given = transfer.given(rank_id);
    }
    prepared.call.kind = &kind;
    prepared.call.lane = task.lane;
    if (task.peer_axis != kNone) {
      prepared.call.peer = program->peer_of(task.peer_map(), rank_id);
    }
    prepared.call.tag = task.tag;
  } else {
    const std::shared_ptr<Device> device = device_of_lane(task.lane, rank.options_.device);
    prepared.kernel = backend->find(kind.op, device->kind(), {kind.in, kind.out});
    if (!prepared.kernel) {
      fail_run("executor", "no kernel for {} ({})", program::types_text(kind), backend->describe());
    }
    prepared.args.attrs = &kind.attrs;
    prepared.args.accumulate = task.accumulate.bits();
    prepared.args.workspace_bytes = kind.workspace;
  }
  if (emulated) {
    const EmulatedDevice::Task& as = emulated->tasks[cls_id.value()][id.value()];
    prepared.call.traffic = as.traffic;
    if (prepared.kernel) {
      prepared.min_duration = {&times[id], emulated->min_ns(rank.id(), cls_id.value(), id.value())};
    }
  }
  lanes[place_of(task.lane)].push_back(std::move(prepared));
}

void Executor::Impl::prepare_poison() {
  // A buffer is poisoned after its last task in issue order, if that task provably follows all
  // other uses: those of its own lane and those in its vector clock. Otherwise no single task knows
  // that the buffer is no longer used, and it keeps its content.
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
        const BufferId root = cls.root(buffer);
        last[root] = i;
        int32_t& latest = used[root][place_of(task.lane)];
        latest = std::max(latest, position[i]);
      }
    }
  }
  std::vector<std::vector<BufferId>> last_used_by(cls.tasks.size());
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
      last_used_by[task].push_back(buffer);
    }
  }
  for (std::vector<PreparedTask>& lane : lanes) {
    for (PreparedTask& prepared : lane) {
      prepared.last_used = std::move(last_used_by[prepared.id]);
      prepared.poisoned.resize(prepared.last_used.size());
    }
  }
}

/// Returns the address of a buffer. Null for a step buffer that no task uses, which has no offset
/// in the plan.
std::byte* Executor::Impl::address_of(BufferId id) const {
  const Buffer& buffer = cls.buffers[id];
  if (buffer.kind == BufferKind::view) {
    return address_of(buffer.base) +
           program::byte_offset(*program, cls, buffer, rank_id, symbol_values);
  }
  if (buffer.kind == BufferKind::persistent) return persistent[id];
  const size_t space = place_of(buffer.space);
  if (is_input_or_output(buffer)) return inputs_outputs[space] + named_offset[id];
  return buffer.offset == kNone ? nullptr : arena[space] + buffer.offset;
}

/// Updates the tasks' pointers to the current addresses of their buffers.
void Executor::Impl::place(const Rank& rank) {
  const bool same = arena_generation == rank.arena_generation() &&
                    named_generation == rank.inputs_outputs_generation() &&
                    (!views_move || placed_for == symbol_values);
  if (same) return;
  for (size_t space = 0; space < arena.size(); ++space) {
    arena[space] = rank.arenas_[space].step.memory()->data();
    inputs_outputs[space] = rank.arenas_[space].inputs_outputs.memory()->data();
  }
  arena_generation = rank.arena_generation();
  named_generation = rank.inputs_outputs_generation();
  placed_for = symbol_values;
  for (std::vector<PreparedTask>& lane : lanes) {
    for (PreparedTask& prepared : lane) {
      place(prepared);
    }
  }
}

void Executor::Impl::place(PreparedTask& prepared) {
  const Task& task = cls.tasks[prepared.id];
  size_t operand = 0;
  for (const auto* list : {&task.in, &task.out}) {
    for (BufferId buffer : *list) {
      prepared.operands[operand++].data = address_of(buffer);
    }
  }
  if (!prepared.kernel) {
    for (size_t i = 0; i < operand; ++i) {
      prepared.pointers[i] = prepared.operands[i].data;
    }
  } else if (task.workspace != kNone) {
    prepared.args.workspace = arena[place_of(program::workspace_space(task.lane))] + task.workspace;
  }
  for (size_t i = 0; i < prepared.last_used.size(); ++i) {
    prepared.poisoned[i].workspace = address_of(prepared.last_used[i]);
    prepared.poisoned[i].workspace_bytes = cls.buffers[prepared.last_used[i]].type.bytes();
  }
}

void Executor::Impl::run(int lane, Lanes& rank_lanes) {
  // The first error of any lane cancels the step: other lanes return at their next task, or from
  // their wait. A failed task does not count as completed.
  for (PreparedTask& prepared : lanes[lane]) {
    try {
      if (rank_lanes.is_cancelled() || !issue(prepared, lane, rank_lanes)) return;
    } catch (...) {
      rank_lanes.fail(program::task_name(*program, cls_id, prepared.id), std::current_exception());
      return;
    }
  }
}

/// Returns the next task of the lane, if it is a communication that could run now: its dependencies
/// are complete, and the current call does not write its inputs.
const comm::Call* Executor::Impl::next_call(const PreparedTask& prepared, int lane) const {
  const PreparedTask* next = &prepared + 1;
  if (next == lanes[lane].data() + lanes[lane].size() || next->kernel) return nullptr;
  const auto is_over = [](const Event& event) { return event.is_complete(); };
  if (!std::all_of(next->waits.begin(), next->waits.end(), is_over)) return nullptr;
  return writes_what_is_read(prepared.call, next->call) ? nullptr : &next->call;
}

/// Issues a task. Returns false if the step was cancelled while the task waited.
bool Executor::Impl::issue(PreparedTask& prepared, int lane, Lanes& rank_lanes) {
  // A kernel waits and runs in its queue; the lane continues as soon as the queue has accepted it.
  // A communication runs on this thread: its operands must be complete, and all earlier tasks of
  // the lane too.
  Queue& queue = rank_lanes.queue(lane);
  const auto reached = [&](const Event& event, Progress::Wait outcome) {
    if (outcome == Progress::Wait::timed_out) {
      fail_run("executor", "waited {} s for task {} of lane {}",
               static_cast<double>(rank_lanes.timeout().count()) / 1000.0, event.count - 1,
               rank_lanes.lane_of(event));
    }
    return outcome == Progress::Wait::reached;
  };
  for (const Event& event : prepared.waits) {
    if (event.is_complete()) continue;
    const Progress::Wait outcome = prepared.kernel ? queue.wait(event, rank_lanes.timeout())
                                                   : event.wait(rank_lanes.timeout());
    if (!reached(event, outcome)) return false;
  }
  TaskTime& time = times[prepared.id];
  if (prepared.kernel) {
    prepared.args.queue = queue.handle();
    queue.launch(prepared.kernel, prepared.args, &time);
    if (prepared.min_duration.ns > 0) {
      queue.launch(await_min_duration, prepared.min_duration_args, nullptr);
    }
  } else {
    const Event turn = rank_lanes.event(lane, &prepared - lanes[lane].data());
    if (!reached(turn, turn.wait(rank_lanes.timeout()))) return false;
    time.start_ns = now_ns();
    communicator->run(prepared.call, [&] { return next_call(prepared, lane); });
    time.end_ns = now_ns();
  }
  for (const kernels::KernelArgs& range : prepared.poisoned) {
    queue.launch(fill_with_poison, range, nullptr);
  }
  queue.record();
  return true;
}

BufferId Executor::Impl::find(std::string_view name, int32_t micro_batch) const {
  const auto it = named.find({std::string(name), micro_batch});
  if (it == named.end()) {
    fail_run("executor", "rank {} has no buffer '{}' of micro-batch {}", rank_id, name,
             micro_batch);
  }
  return it->second;
}

Executor::Executor(Rank& rank, std::shared_ptr<PersistentStore> store,
                   std::shared_ptr<const Program> program,
                   std::shared_ptr<const EmulatedDevice> emulated)
    : rank_(rank) {
  if (rank.lanes_->is_running()) {
    fail_run("executor", "rank {} runs a step; expected a program to be prepared between steps",
             rank.id_);
  }
  impl_ = std::make_shared<Impl>(rank, std::move(store), std::move(program), std::move(emulated));
  const Impl& impl = *impl_;
  for (const program::Space space : {program::Space::device, program::Space::host}) {
    Rank::Arenas& arenas = rank.arenas_[place_of(space)];
    const int64_t bytes = impl.named_bytes[place_of(space)];
    arenas.step.add(this, impl.cls.arena(space),
                    program::planned_pages(*impl.program, impl.cls_id, space));
    arenas.inputs_outputs.add(this, bytes, {program::Range{0, bytes}});
  }
  rank.lanes_->make_for(impl);
  ++rank.programs_;
}

Executor::~Executor() {
  rank_.lanes_->leave(*impl_);
  for (Rank::Arenas& arenas : rank_.arenas_) {
    arenas.step.remove(this);
    arenas.inputs_outputs.remove(this);
  }
  if (--rank_.programs_ == 0) {
    rank_.lanes_->end_threads();
    rank_.holder_ = nullptr;
  }
}

const Buffer& Executor::buffer(std::string_view name, int32_t micro_batch) const {
  return impl_->cls.buffers[impl_->find(name, micro_batch)];
}

Device& Executor::device() const { return *rank_.options_.device; }

const std::vector<Buffer>& Executor::buffers() const { return impl_->cls.buffers; }

bool Executor::has(std::string_view name, int32_t micro_batch) const {
  return impl_->named.count({std::string(name), micro_batch}) > 0;
}

void* Executor::input(std::string_view name, int32_t micro_batch) {
  const BufferId id = impl_->find(name, micro_batch);
  if (rank_.lanes_->is_running()) {
    fail_run("executor", "rank {} runs a step; expected '{}' to be written between steps",
             rank_.id_, name);
  }
  take_over();
  return impl_->address_of(id);
}

const void* Executor::output(std::string_view name, int32_t micro_batch) const {
  const BufferId id = impl_->find(name, micro_batch);
  if (is_input_or_output(impl_->cls.buffers[id]) && !holds()) {
    fail_run("executor",
             "'{}' of rank {} was overwritten: another program of the rank was fed or started "
             "since, or this one never was; try to read it earlier",
             name, rank_.id_);
  }
  return impl_->address_of(id);
}

/// Makes this executor the owner of the inputs and outputs, and updates its tasks' pointers. A
/// program without inputs and outputs takes no ownership.
void Executor::take_over() {
  impl_->place(rank_);
  const auto& bytes = impl_->named_bytes;
  if (std::any_of(bytes.begin(), bytes.end(), [](int64_t of_space) { return of_space > 0; })) {
    rank_.holder_ = this;
    held_ = impl_->named_generation;
  }
}

/// Returns whether the inputs and outputs hold this executor's data.
bool Executor::holds() const {
  return rank_.holder_ == this && held_ == rank_.inputs_outputs_generation();
}

void Executor::set_symbol(std::string_view name, int64_t value) {
  if (rank_.lanes_->is_running()) {
    fail_run("executor", "rank {} runs a step; expected symbol '{}' to be set between steps",
             rank_.id_, name);
  }
  for (size_t i = 0; i < impl_->program->symbols.size(); ++i) {
    const graph::Symbol& symbol = impl_->program->symbols[i];
    if (symbol.name != name) continue;
    graph::expect_value(symbol, value);
    impl_->symbol_values[i] = value;
    return;
  }
  fail_run("executor", "the program has no symbol '{}'", name);
}

const std::vector<int64_t>& Executor::symbol_values() const { return impl_->symbol_values; }

void Executor::require_inputs() const {
  impl_->require_symbols();
  // Inputs that were never written are zero, like all memory that no program of the rank has
  // touched.
  const bool untouched = held_ == kNone && rank_.holder_ == nullptr;
  if (!impl_->has_inputs || holds() || untouched) return;
  fail_run("executor",
           "the inputs of this program on rank {} were overwritten: another program of the rank "
           "was fed, started or prepared since; try to feed it again",
           rank_.id_);
}

void Executor::start() {
  require_inputs();
  if (!rank_.lanes_->is_running()) {
    impl_->resolve_symbols();
    take_over();
    impl_->in_use.clear();
    for (const Rank::Arenas& arenas : rank_.arenas_) {
      impl_->in_use.push_back(arenas.step.memory());
      impl_->in_use.push_back(arenas.inputs_outputs.memory());
    }
    if (rank_.options_.poison) {
      poison();
    }
  }
  rank_.lanes_->start(impl_);  // throws if a step is running
}

/// Poisons all step buffers and outputs, by a queue of the device.
void Executor::poison() {
  const Impl& impl = *impl_;
  for (const program::Space space : {program::Space::device, program::Space::host}) {
    std::vector<kernels::KernelArgs> poisoned;
    const auto add = [&](std::byte* at, int64_t bytes) {
      kernels::KernelArgs& range = poisoned.emplace_back();
      range.workspace = at;
      range.workspace_bytes = bytes;
    };
    if (impl.cls.arena(space) > 0) {
      add(impl.arena[place_of(space)], impl.cls.arena(space));
    }
    for (size_t i = 0; i < impl.cls.buffers.size(); ++i) {
      const Buffer& buffer = impl.cls.buffers[i];
      if (buffer.kind == BufferKind::output && buffer.space == space) {
        add(impl.address_of(i), buffer.type.bytes());
      }
    }
    Progress progress;
    const auto queue =
        device_of(space, rank_.options_.device)->make_queue(progress, [](std::exception_ptr) {});
    for (const kernels::KernelArgs& range : poisoned) {
      queue->launch(fill_with_poison, range, nullptr);
    }
    queue->drain();
  }
}

void Executor::wait() {
  rank_.lanes_->wait();
  impl_->in_use.clear();
}

void Executor::run_inline(const std::function<void(TaskId, const std::function<void()>&)>& visit) {
  // Issue order respects all dependencies, also those between lanes. Queues of their own run the
  // kernels, one per memory space, and each is drained before the next task.
  Impl& impl = *impl_;
  require_inputs();
  impl.resolve_symbols();
  take_over();
  std::vector<PreparedTask*> order(impl.cls.tasks.size());
  for (std::vector<PreparedTask>& lane : impl.lanes) {
    for (PreparedTask& prepared : lane) {
      order[prepared.id] = &prepared;
    }
  }
  impl.backend->enter_thread(rank_.options_.threads);
  std::array<Progress, program::kNumSpaces> progress;
  std::exception_ptr thrown;
  std::array<std::unique_ptr<Queue>, program::kNumSpaces> queues;
  for (const program::Space space : {program::Space::device, program::Space::host}) {
    queues[place_of(space)] =
        device_of(space, rank_.options_.device)
            ->make_queue(progress[place_of(space)],
                         [&](std::exception_ptr exception) { thrown = std::move(exception); });
  }
  for (PreparedTask* prepared : order) {
    visit(prepared->id, [&] {
      if (!prepared->kernel) {
        impl.communicator->run(prepared->call);
        return;
      }
      Queue& queue = *queues[place_of(program::workspace_space(impl.cls.tasks[prepared->id].lane))];
      queue.launch(prepared->kernel, prepared->args, nullptr);
      queue.drain();
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    });
  }
}

const void* Executor::data(BufferId buffer) const { return impl_->address_of(buffer); }

const std::vector<TaskTime>& Executor::times() const { return impl_->times; }

}  // namespace hocket::runtime
