// SPDX-License-Identifier: Apache-2.0
// The program: per rank class, tasks in lanes over buffers with dependencies. The same object is
// executed, simulated, checked and rewritten. Every struct names its fields once (program/field.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/id.h"
#include "collectives/comm_op.h"
#include "graph/graph.h"
#include "graph/layout.h"
#include "graph/output_set.h"
#include "graph/tensor_type.h"
#include "program/field.h"

namespace hocket::program {

using graph::Attrs;
using graph::Layout;
using graph::Mesh;
using graph::OutputSet;
using graph::Symbol;
using graph::TensorType;

using hocket::kNone;
using TaskId = Id<struct Task>;        ///< index into RankClass::tasks
using BufferId = Id<struct Buffer>;    ///< index into RankClass::buffers
using ClassId = Id<struct RankClass>;  ///< index into Program::classes
using KindId = Id<struct Kind>;        ///< index into Program::kinds
using GroupId = Id<struct Group>;      ///< index into Program::groups
using TableId = Id<struct Table>;      ///< index into Program::tables
using RoleId = Id<struct Role>;        ///< index into Program::roles

/// An in-order queue of a rank that stands for a resource. Collectives have the lanes `intra` and
/// `inter`, messages a pair of their own, as links are full duplex: what a rank sends leaves in the
/// `_tx` lane of the link, what it receives arrives in the `_rx` lane. So a message to the next
/// stage does not stand behind a sum of gradients: they share the link.
enum class Lane : uint8_t {
  compute,
  intra,
  inter,
  intra_tx,
  inter_tx,
  intra_rx,
  inter_rx,
  h2d,
  d2h,
  host
};
inline constexpr int kNumLanes = 10;
const char* to_string(Lane lane);
Lane parse_lane(std::string_view text);

/// `grad` is the once-per-step reduction of gradients and losses, `optimizer` the update.
enum class Phase : uint8_t { forward, backward, grad, optimizer };
const char* to_string(Phase phase);
Phase parse_phase(std::string_view text);

template <>
inline constexpr bool kIsCache<comm::Id> = true;

/// What tasks of the same shape share, interned: op (a compute op of src/ops or a communication op
/// of src/collectives), attributes, local types, cost.
struct Kind {
  std::string op;
  Attrs attrs;
  std::vector<TensorType> in, out;  ///< local types, accumulators not among the inputs
  double flops = 0;
  int64_t bytes = 0;      ///< memory traffic of a kernel; comm::Op::payload of a communication
  int64_t workspace = 0;  ///< in the arena; of a collective: comm::transport_bytes, or 0
  comm::Id communication =
      comm::Id::none;  ///< follows from `op`: set by Program::intern and the parser
  bool operator==(const Kind&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("op").word(), &Kind::op);
    visit(Field("attrs").always(), &Kind::attrs);
    visit(Field("in").always(), &Kind::in);
    visit(Field("out").always(), &Kind::out);
    visit(Field("flops").always(), &Kind::flops);
    visit(Field("bytes").always(), &Kind::bytes);
    visit(Field("workspace").always(), &Kind::workspace);
    visit(Field("").cache(), &Kind::communication);
  }
};
/// What a rate of arithmetic is looked up by: the first floating-point type among inputs, then
/// outputs; f32 if there is none. Kernels are found by the types of all operands.
graph::DType compute_dtype(const Kind& kind);
/// "linear (f32[4,8], f32[2,8]) -> (f32[4,2])".
std::string types_text(const Kind& kind);
inline bool is_communication(const Kind& kind) { return kind.communication != comm::Id::none; }
bool is_collective(const Kind& kind);  ///< communication other than messages
/// True if tasks of these kinds may meet.
bool may_meet(const Kind& one, const Kind& other);
/// The kind of a communication op on these local types, with its payload: symbols among the dims
/// count as expected.
Kind communication_kind(comm::Id op, Attrs attrs, std::vector<TensorType> in,
                        std::vector<TensorType> out, std::span<const Symbol> symbols = {});
/// Which order what leaves on a link keeps: that of messages, or that of collectives, for a message
/// that is a part of one: it takes nothing from those that are waited for, as one in a lane of its
/// own would if it was asked for ahead.
enum class Order : uint8_t { messages, collectives };
Order order_of(Lane lane);  ///< `collectives` of `intra` and `inter`
/// The lane of a link for what has this role: collectives, sends, receives. `order` is asked for
/// sends alone: collectives have but one, and what arrives has lanes of its own either way.
Lane link_lane(comm::Role role, bool leaves_node, Order order = Order::messages);
/// What the host does, or copies to and from it: `host`, `h2d`, `d2h`.
inline bool is_of_host(Lane lane) { return lane >= Lane::h2d; }
bool is_between_nodes(Lane lane);  ///< of the links between nodes: `inter`, `inter_tx`, `inter_rx`

/// A set of ranks with a job of its own, on a mesh of its own. The ranks of a role are consecutive,
/// those of the first role come first.
struct Role {
  std::string name = "all";
  Mesh mesh;
  bool operator==(const Role&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("name").word().label(), &Role::name);
    visit(Field("mesh").always(), &Role::mesh);
  }
};

/// Ranks of a role that differ only in the coordinates of `axes`; of the axis `along`, one of
/// `axes`, only the coordinates `members` take part (the stages that share a tied parameter); kNone
/// and empty: all of every axis. Or all ranks of two roles, `role` and the later `with`, between
/// which something is transferred.
/// Program::intern brings a group to its one spelling: axes of one rank are left out, and so are
/// `members` when they name all coordinates.
struct Group {
  RoleId role = 0;
  std::vector<int32_t> axes;
  int32_t along = kNone;
  std::vector<int32_t> members;
  RoleId with = kNone;
  bool operator==(const Group&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("role").refers_to(Ref::role), &Group::role);
    visit(Field("axes").refers_to(Ref::axis), &Group::axes);
    visit(Field("along").refers_to(Ref::axis), &Group::along);
    visit(Field("members"), &Group::members);
    visit(Field("with").refers_to(Ref::role), &Group::with);
  }
};

/// The group over these axes, with all coordinates.
inline Group group_over(std::vector<int32_t> axes, RoleId role = 0) {
  return {role, std::move(axes), kNone, {}, kNone};
}
/// The group of all ranks of two roles.
inline Group group_between(RoleId one, RoleId other) {
  return {std::min(one, other), {}, kNone, {}, std::max(one, other)};
}

/// Coordinates [begin, begin + count) on an axis; kAll: all of them, whatever its size.
struct Interval {
  static constexpr int32_t kAll = -1;
  int32_t begin = 0, count = kAll;
  bool is_all() const { return count == kAll; }
  int32_t end() const { return begin + count; }
  bool contains(int32_t at) const { return is_all() || (at >= begin && at < end()); }
  bool operator==(const Interval&) const = default;
};

/// Ranks of a mesh: all whose coordinate on every axis lies in the interval of that axis.
struct Box {
  std::array<Interval, graph::kMaxAxes> on;
  Interval& operator[](size_t axis) { return on[axis]; }
  const Interval& operator[](size_t axis) const { return on[axis]; }
  /// The ranks with this coordinate on the axis.
  static Box at(int32_t axis, int32_t coordinate);
  bool operator==(const Box&) const = default;
};
std::string to_string(const Box& box, const Mesh& mesh);  ///< "pp:0 ep:0-1"; whole axes left out
Box parse_box(std::string_view text, const Mesh& mesh);   ///< throws Error

/// A number at every coordinate on some axes of a role's mesh: where something begins that is not
/// in the same place on all its ranks, or how far away the peers of ranks lie. The last axis counts
/// fastest.
struct Table {
  RoleId role = 0;            ///< whose ranks may refer to it
  std::vector<int32_t> axes;  ///< ascending
  std::vector<int64_t> values;
  bool operator==(const Table&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("role").refers_to(Ref::role), &Table::role);
    visit(Field("axes").refers_to(Ref::axis), &Table::axes);
    visit(Field("values").always(), &Table::values);
  }
};

/// The furthest that an index or an element at which something begins, or a number of a table that
/// is added to one, may be from 0: sums of a few of them and of sizes do not overflow.
inline constexpr int64_t kMostBegin = int64_t{1} << 50;
inline bool begins_too_far(int64_t begin) { return begin > kMostBegin || begin < -kMostBegin; }

/// Where the rank's piece of a letter of an op's notation begins in the logical tensor, for ops
/// that act by position. The letters of a transfer are a, b, .. for the dims of what it moves.
struct Begin {
  char letter = 0;
  int64_t begin = 0;
  TableId by = kNone;  ///< added to it
  bool operator==(const Begin&) const = default;
};

/// The other end of a message: the rank that lies `offset` further along an axis, around its end.
/// With a table, its number at the coordinates of the rank is added to the offset, so that any
/// permutation of the ranks along the axis is a way.
struct Way {
  int32_t axis = kNone, offset = 0;
  TableId by = kNone;
  auto operator<=>(const Way&) const = default;
};

/// One part of a task starts after one of another task.
struct PartDep {
  int32_t own = 0;      ///< part of the task that waits
  TaskId task = kNone;  ///< in another lane
  int32_t part = 0;     ///< of that one
  bool operator==(const PartDep&) const = default;
};

struct Task {
  KindId kind = 0;
  Lane lane = Lane::compute;
  Phase phase = Phase::forward;
  int32_t micro_batch = kNone;
  int32_t stage = kNone;  ///< of the pipeline; a rank may run several
  int32_t layer = kNone;
  OutputSet accumulate;  ///< outputs that are added to
  bool recompute = false;
  std::vector<BufferId> in, out;
  std::vector<Begin> begins;  ///< of letters whose pieces do not begin at 0 on all ranks
  /// At most one: the task is done in parts (parts.h), as many as `begin` says, each a block along
  /// the letter; the block that `by` says first (0 without one), then those above it, around the
  /// end. A negative number: then those below it. Letters of a communication are 'a' for dim 0 ..
  std::vector<Begin> parts;
  std::vector<TaskId> deps;  ///< in other lanes; order inside a lane is implied
  std::vector<PartDep> part_deps;
  GroupId group = kNone;  ///< collectives
  /// send/recv: the way to the peer, on the mesh of the role; message id
  int32_t peer_axis = kNone, peer = 0, tag = kNone;
  TableId peer_by = kNone;    ///< added to `peer`
  int32_t origin = kNone;     ///< graph node (label; no rule of check may depend on it)
  int64_t workspace = kNone;  ///< arena offset of its kernel's workspace
  Way way() const { return {peer_axis, peer, peer_by}; }
  /// Where its piece of a letter begins; null: at 0. What is said of one letter twice counts once:
  /// the first time.
  const Begin* begin_of(char letter) const;
  bool operator==(const Task&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("lane").word(), &Task::lane);
    visit(Field("phase").word().label(), &Task::phase);
    visit(Field("kind").word().refers_to(Ref::kind), &Task::kind);
    visit(Field("mb").label(), &Task::micro_batch);
    visit(Field("stage").label(), &Task::stage);
    visit(Field("layer").always().label(), &Task::layer);
    visit(Field("in").refers_to(Ref::buffer), &Task::in);
    visit(Field("out").refers_to(Ref::buffer), &Task::out);
    visit(Field("begins").refers_to(Ref::table), &Task::begins);
    visit(Field("acc"), &Task::accumulate);
    visit(Field("recompute").label(), &Task::recompute);
    visit(Field("parts").refers_to(Ref::table), &Task::parts);
    visit(Field("deps").refers_to(Ref::task), &Task::deps);
    visit(Field("part_deps").refers_to(Ref::task), &Task::part_deps);
    visit(Field("group").refers_to(Ref::group), &Task::group);
    visit(Field("axis").refers_to(Ref::axis), &Task::peer_axis);
    visit(Field("peer").follows(), &Task::peer);
    visit(Field("tag").follows().address(), &Task::tag);
    visit(Field("by").refers_to(Ref::table), &Task::peer_by);
    visit(Field("node").refers_to(Ref::graph_node).label(), &Task::origin);
    visit(Field("ws").address(), &Task::workspace);
  }
};

enum class BufferKind : uint8_t {
  step,        ///< lives inside a step, at an offset of the arena
  persistent,  ///< named, survives steps: parameters, optimizer state, KV cache
  input,       ///< named, written by the host before a step
  output,      ///< named, read by the host after a step
  view,        ///< a part of another buffer
};
const char* to_string(BufferKind kind);

/// Where memory lies. A rank has an arena in each.
enum class Space : uint8_t {
  device,  ///< what kernels and links work on
  host,    ///< where the host lane works: what is offloaded lies here
};
inline constexpr int kNumSpaces = 2;
const char* to_string(Space space);
Space parse_space(std::string_view text);

/// A tensor in a named buffer that holds several. Its local part, in memory order, lies at elements
/// `begin` on of the bucket: all that the ranks which split the buffer hold together.
struct Slot {
  std::string tensor;
  Layout layout;  ///< of the tensor, before the bucket is split
  int64_t begin = 0;
  bool operator==(const Slot&) const = default;
};

/// A step buffer with symbols among its dims has room for their bounds, and holds the tensor of the
/// step row by row from its beginning. A persistent one may have one at dim 0 alone: its rows stay
/// where they are when their number changes.
struct Buffer {
  TensorType type;  ///< local
  BufferKind kind = BufferKind::step;
  Space space = Space::device;
  std::string name;             ///< persistent, input, output: tensor name; of a bucket its own
  int32_t micro_batch = kNone;  ///< input: which micro-batch
  int64_t offset = kNone;       ///< step: in the arena of its space, multiple of 64
  Layout layout;                ///< persistent/input/output: contract with the host
  /// Persistent and output buffers of rank 1: the tensors that it holds, in order, with zeros
  /// between and behind them. The layout is that of the bucket, of whose elements a rank has its
  /// block.
  std::vector<Slot> slots;
  int32_t logical = kNone;  ///< graph tensor (label; no rule of check may depend on it)
  /// Step buffers of routed rows: the type's size is a bound, and the plan counts on this many
  /// bytes from the buffer's beginning. It has a slot: no dense buffer shares its addresses.
  int64_t expected_bytes = kNone;
  // View: the part of `base` that begins at index `begin` (plus what the table says at the rank's
  // coordinates) of dim `dim`, as long as its own type says; without a dim, elements of the base in
  // memory order, in a shape of the view's own. A base is no view itself.
  BufferId base = kNone;
  int32_t dim = kNone;
  int64_t begin = 0;
  TableId by = kNone;
  bool operator==(const Buffer&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("kind").word(), &Buffer::kind);
    visit(Field("type").word(), &Buffer::type);
    visit(Field("space"), &Buffer::space);
    visit(Field("at").address(), &Buffer::offset);
    visit(Field("mb"), &Buffer::micro_batch);
    visit(Field("tensor").refers_to(Ref::graph_tensor).label(), &Buffer::logical);
    visit(Field("expected"), &Buffer::expected_bytes);
    visit(Field("layout").label_of_step(), &Buffer::layout);
    visit(Field("name"), &Buffer::name);
    visit(Field("slots"), &Buffer::slots);
    visit(Field("base").refers_to(Ref::buffer), &Buffer::base);
    visit(Field("dim").follows(), &Buffer::dim);
    visit(Field("begin").follows(), &Buffer::begin);
    visit(Field("by").refers_to(Ref::table), &Buffer::by);
  }
};

/// Ranks that do the same: those of a role that lie in a box of its mesh. Tasks are in issue order;
/// a lane is the subsequence of its tasks.
struct RankClass {
  std::string name;
  RoleId role = 0;
  Box box;
  std::vector<Task> tasks;
  std::vector<Buffer> buffers;
  /// Addresses of step buffers and workspaces, as planned. How much of them is memory: memory.h.
  int64_t arena_bytes = 0;
  int64_t host_arena_bytes = 0;  ///< of step buffers in host memory
  int64_t arena(Space space) const {
    return space == Space::device ? arena_bytes : host_arena_bytes;
  }
  /// The buffer that has the memory: the base of a view, else the buffer itself.
  BufferId root(BufferId buffer) const {
    return buffers[buffer].kind == BufferKind::view ? buffers[buffer].base : buffer;
  }
  bool operator==(const RankClass&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("name").word().label(), &RankClass::name);
    visit(Field("role").refers_to(Ref::role), &RankClass::role);
    visit(Field("box"), &RankClass::box);
    visit(Field("arena").always(), &RankClass::arena_bytes);
    visit(Field("host_arena"), &RankClass::host_arena_bytes);
    visit(Field("buffer"), &RankClass::buffers);
    visit(Field("task"), &RankClass::tasks);
  }
};

/// A named tensor that belongs to a parameter: a state that the optimizer keeps for it
/// (persistent), or its gradient (an output).
struct Belongs {
  std::string tensor, parameter;
  bool operator==(const Belongs&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("tensor").always(), &Belongs::tensor);
    visit(Field("to").always(), &Belongs::parameter);
  }
};

/// Where each kind stands in Program::kinds, by all its fields. Kept by Program::intern.
class KindIndex {
 public:
  /// Two programs are equal whatever was looked up in them.
  bool operator==(const KindIndex&) const { return true; }

 private:
  friend struct Program;
  std::map<std::string, KindId> places_;
};
template <>
inline constexpr bool kIsCache<KindIndex> = true;

struct Program {
  std::string config;   ///< resolved run configuration (JSON, one line): model, data, train, plan
  std::string purpose;  ///< which of the programs of that run it is (run/compile.h); "": training
  int32_t num_micro_batches = 1;
  int32_t num_layers = 0;      ///< of the model, to name what is not in one; 0: not known
  int32_t ranks_per_node = 0;  ///< rank r lies in node r / ranks_per_node; 0: all in one
  std::vector<Role> roles{Role{}};
  std::vector<Symbol> symbols;  ///< what dims of the types below may refer to
  std::vector<Belongs> belongs;
  std::vector<Table> tables;
  std::vector<Kind> kinds;
  std::vector<Group> groups;
  std::vector<RankClass> classes;  ///< the boxes of a role's classes are a partition of its ranks
  KindIndex kind_index;

  const Kind& kind(const Task& task) const { return kinds[task.kind]; }

  // Ranks, roles and classes.
  int32_t num_ranks() const;
  int32_t num_ranks(ClassId cls) const;
  RoleId role_of(int32_t rank) const;
  int32_t first_rank(RoleId role) const;
  const Mesh& mesh_of(ClassId cls) const { return roles[classes[cls].role].mesh; }
  /// Of the rank in the mesh of its role.
  std::vector<int32_t> coords(int32_t rank) const;
  /// The class whose box holds the rank, kNone if there is none: a walk over the classes. Who asks
  /// for all ranks takes the table.
  ClassId class_of(int32_t rank) const;
  std::vector<ClassId> class_table() const;  ///< by rank
  std::vector<int32_t> ranks_of(ClassId cls) const;
  /// The box of a class on an axis of its mesh, in numbers.
  Interval span(ClassId cls, int32_t axis) const;
  /// What keeps the classes from being a partition of the ranks, or "".
  std::string bad_placement() const;

  // Who meets whom.
  /// Members of the group instance that `rank`, of a role of the group, belongs to, in rank order.
  std::vector<int32_t> members(const Group& group, int32_t rank) const;
  /// Ranks that meet in an instance of the group.
  int64_t size_of(const Group& group) const;
  /// The classes whose ranks meet in one instance of the group, ascending; one entry for every sort
  /// of instance that there is.
  std::vector<std::vector<ClassId>> meetings(const Group& group) const;
  /// True if ranks of several classes meet in some instance of the group.
  bool crosses_classes(const Group& group) const;
  /// The rank that a message of `rank` goes to or comes from. This is what a peer is, for
  /// everybody.
  int32_t peer_of(const Way& way, int32_t rank) const;
  /// The classes of the peers of the ranks of `cls`, ascending.
  std::vector<ClassId> peer_classes(ClassId cls, const Way& way) const;
  /// True if some ranks of class `cls` meet ranks of other nodes in the group, or send to or
  /// receive from other nodes. At worst linear in the ranks of the class.
  bool leaves_node(const Group& group, ClassId cls) const;
  bool leaves_node(const Way& way, ClassId cls) const;

  KindId intern(Kind kind);
  GroupId intern(const Group& group);
  TableId intern(Table table);
  /// `begin` plus the table's number at the coordinates of the rank, which is of the table's role.
  int64_t begin_at(int64_t begin, TableId by, int32_t rank) const;
  /// Where a task's piece of a letter begins on a rank of its role.
  int64_t begin_at(const Task& task, char letter, int32_t rank) const;
  /// The same at coordinates in the mesh of the table's role.
  int64_t begin_at(int64_t begin, TableId by, std::span<const int32_t> coords) const;
  /// The parameter that each tensor of `belongs` belongs to, by the tensor's name.
  std::map<std::string, std::string> parameters_of_tensors() const;
  /// The one spelling of a group: two groups have the same ranks exactly if theirs are equal.
  Group canonical(Group group) const;
  bool operator==(const Program&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("config").label(), &Program::config);
    visit(Field("purpose").label(), &Program::purpose);
    visit(Field("micro_batches").always(), &Program::num_micro_batches);
    visit(Field("layers").label(), &Program::num_layers);
    visit(Field("ranks_per_node"), &Program::ranks_per_node);
    visit(Field("role"), &Program::roles);
    visit(Field("symbol"), &Program::symbols);
    visit(Field("belongs").label(), &Program::belongs);
    visit(Field("table"), &Program::tables);
    visit(Field("kind"), &Program::kinds);
    visit(Field("group"), &Program::groups);
    visit(Field("class"), &Program::classes);
    visit(Field("").cache(), &Program::kind_index);
  }
};

/// Makes one class of those that have equal lists (tasks, buffers, arena) and boxes that together
/// are one box; its name is that of the first. What every rank does stays as it is.
void unite_equal_classes(Program& program);

/// Stages of the pipeline that the class has tasks of, ascending.
std::vector<int32_t> stages_of(const RankClass& cls);
/// Stages of all classes together; as many as classes if no task knows its stage.
int32_t num_stages(const Program& program);
/// "stage 0", "stages 0, 2" if it runs several; its name if it knows none.
std::string stage_name(const RankClass& cls);

/// Text form: prints and parses back to the same thing. Errors name `where` and the line.
std::string print(const Program& program, ClassId only_class = kNone);
Program parse_program(std::string_view text, const std::string& where = "program text");

/// What a thing is, whatever its number and place in the program: all its fields but addresses, ids
/// of buffers and tasks, and numbers of the graph; kinds, groups and axes spelt out. Equal for
/// things that do the same in two programs.
/// `cls`: whose task or buffer it is; axes are those of its role's mesh.
std::string identity(const Program& program, ClassId cls, const Task& task);
std::string identity(const Program& program, ClassId cls, const Buffer& buffer);
std::string identity(const Program& program, const Kind& kind);

/// Hash of everything that decides what the program does: all fields but labels (origin, logical,
/// coordinates of tasks, names of roles and classes, layouts of step buffers, the configuration's
/// text, the purpose). Two programs of one hash do the same.
Hash128 program_hash(const Program& program);
std::string to_dot(const Program& program, ClassId cls);

/// "linear_dw L3 mb2 backward (stage0 task 118)": how a task is named in messages and traces. The
/// place in the model is as graph::layer_name says; the ops of the embedding say it themselves. In
/// a class of several stages the stage comes with it: "linear L3 stage4 mb2 forward (..)".
std::string task_name(const Program& program, ClassId cls, TaskId task);

}  // namespace hocket::program
