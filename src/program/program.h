// SPDX-License-Identifier: Apache-2.0
// The program: per rank class, tasks in lanes over buffers, with dependencies. The same object is
// executed, simulated, checked and rewritten. Every struct lists its fields once (program/field.h).
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

/// An in-order queue of one resource of a rank, like a CUDA stream. Collectives use the lanes
/// `intra` and `inter`. Sends and receives use the `_tx` and `_rx` lanes of the link, since links
/// are full duplex. So a message to the next stage does not queue behind a gradient all-reduce; it
/// shares the link.
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

/// The common part of tasks of one shape, interned: op (of src/ops or src/collectives),
/// attributes, local types, costs.
struct Kind {
  std::string op;
  Attrs attrs;
  std::vector<TensorType> in, out;  ///< local types; accumulators are not inputs
  double flops = 0;
  int64_t bytes = 0;      ///< memory traffic of a kernel; comm::Op::payload of a communication
  int64_t workspace = 0;  ///< in the arena; for a collective comm::transport_bytes, or 0
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
/// Returns the type that sets the arithmetic peak: the first floating-point type among inputs, then
/// outputs; f32 without one. Kernels are found by the types of all operands.
graph::DType compute_dtype(const Kind& kind);
/// Returns "linear (f32[4,8], f32[2,8]) -> (f32[4,2])".
std::string types_text(const Kind& kind);
inline bool is_communication(const Kind& kind) { return kind.communication != comm::Id::none; }
bool is_collective(const Kind& kind);  ///< communication other than messages
/// Returns whether tasks of both kinds may meet in one communication.
bool may_meet(const Kind& one, const Kind& other);
/// Returns the kind of a communication op on these local types, with its payload. Symbols among the
/// dims count with their expected values.
Kind communication_kind(comm::Id op, Attrs attrs, std::vector<TensorType> in,
                        std::vector<TensorType> out, std::span<const Symbol> symbols = {});
/// Order of a send on its link: in the messages' lane, or in the collectives' lane for a message of
/// an expanded collective. In the latter, a prefetched message takes no bandwidth from a collective
/// that compute waits for.
enum class Order : uint8_t { messages, collectives };
Order order_of(Lane lane);  ///< `collectives` for `intra` and `inter`
/// Returns the lane of a link for a collective, send or receive. `order` matters for sends only.
Lane link_lane(comm::Role role, bool leaves_node, Order order = Order::messages);
/// Returns whether the lane is the host's, or copies to or from it: `host`, `h2d`, `d2h`.
inline bool is_of_host(Lane lane) { return lane >= Lane::h2d; }
bool is_between_nodes(Lane lane);  ///< one of `inter`, `inter_tx`, `inter_rx`

/// A set of ranks with a mesh of its own, such as attention ranks and expert ranks. Ranks of a role
/// are consecutive, in the order of the roles.
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

/// A process group: ranks of a role that differ only in the coordinates of `axes`. With `along`,
/// one of `axes`, only its coordinates `members` take part (the stages that share a tied
/// parameter). With `with`, a later role: all ranks of both roles, for a transfer between them.
/// Program::intern normalises a group: axes of size one are dropped, and so are `members` that name
/// all coordinates.
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

/// Returns the group over these axes, with all coordinates.
inline Group group_over(std::vector<int32_t> axes, RoleId role = 0) {
  return {role, std::move(axes), kNone, {}, kNone};
}
/// Returns the group of all ranks of two roles.
inline Group group_between(RoleId one, RoleId other) {
  return {std::min(one, other), {}, kNone, {}, std::max(one, other)};
}

/// Coordinates [begin, begin + count) on an axis; kAll: the whole axis, of any size.
struct Interval {
  static constexpr int32_t kAll = -1;
  int32_t begin = 0, count = kAll;
  bool is_all() const { return count == kAll; }
  int32_t end() const { return begin + count; }
  bool contains(int32_t at) const { return is_all() || (at >= begin && at < end()); }
  bool operator==(const Interval&) const = default;
};

/// A box of a mesh: the ranks with every coordinate in the interval of its axis.
struct Box {
  std::array<Interval, graph::kMaxAxes> on;
  Interval& operator[](size_t axis) { return on[axis]; }
  const Interval& operator[](size_t axis) const { return on[axis]; }
  /// Returns the ranks with this coordinate on the axis.
  static Box at(int32_t axis, int32_t coordinate);
  bool operator==(const Box&) const = default;
};
std::string to_string(const Box& box, const Mesh& mesh);  ///< "pp:0 ep:0-1", without whole axes
Box parse_box(std::string_view text, const Mesh& mesh);   ///< throws Error

/// A number for every coordinate on some axes of a role's mesh: an offset, or the distance of a
/// peer, that differs between ranks. The last axis counts fastest.
struct Table {
  RoleId role = 0;            ///< only its classes may refer to the table
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

/// Largest absolute offset, of a piece, view or table entry. Sums of several offsets and sizes then
/// do not overflow.
inline constexpr int64_t kMaxOffset = int64_t{1} << 50;
inline bool is_offset_too_large(int64_t begin) { return begin > kMaxOffset || begin < -kMaxOffset; }

/// Offset of the rank's piece along a letter of an op's notation in the logical tensor, for ops
/// that depend on position. The letters of a transfer are a, b, .. for the dims of its tensor.
struct PieceOffset {
  char letter = 0;
  int64_t begin = 0;
  TableId by = kNone;  ///< a number per rank, added to `begin`
  bool operator==(const PieceOffset&) const = default;
};

/// Maps a rank to the other end of a message: `offset` further along an axis, with wrap-around. A
/// table adds a number per rank, so any permutation along the axis can be expressed.
struct PeerMap {
  int32_t axis = kNone, offset = 0;
  TableId by = kNone;
  auto operator<=>(const PeerMap&) const = default;
};

/// Dependency of a part of a task on a part of another task.
struct PartDep {
  int32_t own = 0;      ///< part of the waiting task
  TaskId task = kNone;  ///< in another lane
  int32_t part = 0;     ///< part of `task`
  bool operator==(const PartDep&) const = default;
};

struct Task {
  KindId kind = 0;
  Lane lane = Lane::compute;
  Phase phase = Phase::forward;
  int32_t micro_batch = kNone;
  int32_t stage = kNone;  ///< pipeline stage; a rank may run several
  int32_t layer = kNone;
  OutputSet accumulate;  ///< accumulated outputs
  bool recompute = false;
  std::vector<BufferId> in, out;
  std::vector<PieceOffset> piece_offsets;  ///< offsets that are not 0 on all ranks
  /// At most one entry: the task runs in |`begin`| parts (parts.h), each a block along the letter.
  /// `by` gives the first block (0 without it); the next ones follow with wrap-around, downwards if
  /// `begin` is negative. Letters of a communication are 'a' for dim 0 and so on.
  std::vector<PieceOffset> parts;
  std::vector<TaskId> deps;  ///< in other lanes; order inside a lane is implied
  std::vector<PartDep> part_deps;
  GroupId group = kNone;  ///< collectives
  /// Messages: axis of the role's mesh, offset of the peer along it (PeerMap), and message id.
  int32_t peer_axis = kNone, peer = 0, tag = kNone;
  TableId peer_by = kNone;    ///< added to `peer`
  int32_t origin = kNone;     ///< graph node; a label that no rule of the check depends on
  int64_t workspace = kNone;  ///< arena offset of its kernel's workspace
  PeerMap peer_map() const { return {peer_axis, peer, peer_by}; }
  /// Returns the offset entry of a letter, the first if there are several; null: 0.
  const PieceOffset* piece_offset(char letter) const;
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
    visit(Field("begins").refers_to(Ref::table), &Task::piece_offsets);
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

/// A memory space. A rank has an arena in each.
enum class Space : uint8_t {
  device,  ///< memory of kernels and links
  host,    ///< memory of the host lane, for offloaded tensors
};
inline constexpr int kNumSpaces = 2;
const char* to_string(Space space);
Space parse_space(std::string_view text);

/// A tensor in a bucket. Its local part is at elements `begin` and following, in memory order, of
/// the bucket before it is split over ranks.
struct Slot {
  std::string tensor;
  Layout layout;  ///< of the tensor, before the bucket is split
  int64_t begin = 0;
  bool operator==(const Slot&) const = default;
};

/// A tensor in memory. A step buffer with symbolic dims has room for their bounds, and holds the
/// step's tensor row by row from its beginning. A persistent one may have a symbol at dim 0 only,
/// so that its rows keep their place as their number changes.
struct Buffer {
  TensorType type;  ///< local
  BufferKind kind = BufferKind::step;
  Space space = Space::device;
  std::string name;             ///< persistent, input, output: tensor name; a bucket's own name
  int32_t micro_batch = kNone;  ///< of an input
  int64_t offset = kNone;       ///< step: offset in the arena of its space, a multiple of 64
  Layout layout;                ///< persistent/input/output: contract with the host
  /// Buckets (persistent and output buffers of rank 1): the tensors in order, with zeros between
  /// and after them. `layout` is the bucket's: a rank has its block of the elements.
  std::vector<Slot> slots;
  int32_t logical = kNone;  ///< graph tensor; a label that no rule of the check depends on
  /// Step buffers of routed rows: expected bytes from the buffer's beginning; the type's size is a
  /// bound. No dense buffer shares its addresses.
  int64_t expected_bytes = kNone;
  // View: the part of `base` from index `begin` (plus the table's number) of dim `dim`, of the size
  // of its own type. Without `dim`: elements of the base in memory order, in a shape of its own. A
  // base is never a view.
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

/// Ranks that run the same list of tasks: a box of a role's mesh. Tasks are in issue order; a lane
/// is the subsequence of its tasks.
struct RankClass {
  std::string name;
  RoleId role = 0;
  Box box;
  std::vector<Task> tasks;
  std::vector<Buffer> buffers;
  /// Planned addresses of step buffers and workspaces. memory.h says how much of them is memory.
  int64_t arena_bytes = 0;
  int64_t host_arena_bytes = 0;  ///< of step buffers in host memory
  int64_t arena(Space space) const {
    return space == Space::device ? arena_bytes : host_arena_bytes;
  }
  /// Returns the base of a view, or the buffer itself.
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

/// Relates a named tensor to a parameter: an optimizer state (persistent), or its gradient (an
/// output).
struct Belongs {
  std::string tensor, parameter;
  bool operator==(const Belongs&) const = default;

  template <class Visitor>
  static constexpr void fields(Visitor&& visit) {
    visit(Field("tensor").always(), &Belongs::tensor);
    visit(Field("to").always(), &Belongs::parameter);
  }
};

/// Index of Program::kinds by all fields, maintained by Program::intern.
class KindIndex {
 public:
  /// Always equal: a cache does not distinguish programs.
  bool operator==(const KindIndex&) const { return true; }

 private:
  friend struct Program;
  std::map<std::string, KindId> places_;
};
template <>
inline constexpr bool kIsCache<KindIndex> = true;

struct Program {
  std::string config;   ///< resolved run configuration (JSON, one line): model, data, train, plan
  std::string purpose;  ///< one of the run's programs (run/compile.h); "": training
  int32_t num_micro_batches = 1;
  int32_t num_layers = 0;      ///< of the model, for names of places; 0: unknown
  int32_t ranks_per_node = 0;  ///< rank r is on node r / ranks_per_node; 0: one node
  std::vector<Role> roles{Role{}};
  std::vector<Symbol> symbols;  ///< of the dims of types
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
  /// Returns the rank's coordinates in the mesh of its role.
  std::vector<int32_t> coords(int32_t rank) const;
  /// Returns the class of the rank, or kNone. Linear in the classes; for all ranks use
  /// class_table.
  ClassId class_of(int32_t rank) const;
  std::vector<ClassId> class_table() const;  ///< by rank
  std::vector<int32_t> ranks_of(ClassId cls) const;
  /// Returns the interval of a class on an axis of its mesh, with kAll resolved.
  Interval span(ClassId cls, int32_t axis) const;
  /// Returns why the classes are no partition of the ranks, or "".
  std::string bad_placement() const;

  // Groups and peers.
  /// Returns the members of the group instance of `rank`, in rank order.
  std::vector<int32_t> members(const Group& group, int32_t rank) const;
  /// Returns the number of ranks in an instance of the group.
  int64_t size_of(const Group& group) const;
  /// Returns, for every distinct kind of instance, the classes with ranks in it, ascending.
  std::vector<std::vector<ClassId>> meetings(const Group& group) const;
  /// Returns whether ranks of several classes meet in some instance of the group.
  bool crosses_classes(const Group& group) const;
  /// Returns the rank at the other end of a message of `rank`: the one definition of a peer.
  int32_t peer_of(const PeerMap& peer_map, int32_t rank) const;
  /// Returns the classes of the peers of the ranks of `cls`, ascending.
  std::vector<ClassId> peer_classes(ClassId cls, const PeerMap& peer_map) const;
  /// Returns whether some rank of `cls` meets ranks of other nodes in the group, or sends to or
  /// receives from other nodes. At worst linear in the ranks of the class.
  bool leaves_node(const Group& group, ClassId cls) const;
  bool leaves_node(const PeerMap& peer_map, ClassId cls) const;

  KindId intern(Kind kind);
  GroupId intern(const Group& group);
  TableId intern(Table table);
  /// Returns `begin` plus the table's number at the rank's coordinates. Requires: the rank is of
  /// the table's role.
  int64_t begin_at(int64_t begin, TableId by, int32_t rank) const;
  /// Returns the offset of a task's piece along a letter on a rank of its role.
  int64_t begin_at(const Task& task, char letter, int32_t rank) const;
  /// The same, at coordinates in the mesh of the table's role.
  int64_t begin_at(int64_t begin, TableId by, std::span<const int32_t> coords) const;
  /// Returns the parameter of each tensor of `belongs`, by the tensor's name.
  std::map<std::string, std::string> parameters_of_tensors() const;
  /// Returns the normal form of a group: equal exactly for groups with the same ranks.
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

/// Merges classes with equal lists (tasks, buffers, arena) if their boxes form one box, under the
/// name of the first. Every rank's tasks stay the same.
void unite_equal_classes(Program& program);

/// Returns the pipeline stages of the class's tasks, ascending.
std::vector<int32_t> stages_of(const RankClass& cls);
/// Returns the number of stages of all classes, or the number of classes if no task has a stage.
int32_t num_stages(const Program& program);
/// Returns "stage 0", "stages 0, 2", or the class's name without stages.
std::string stage_name(const RankClass& cls);

/// Text form; parsing a printed program gives an equal one. Errors name `where` and the line.
std::string print(const Program& program, ClassId only_class = kNone);
Program parse_program(std::string_view text, const std::string& where = "program text");

/// Returns a description independent of numbering: all fields except addresses, ids of buffers and
/// tasks, and numbers of the graph, with kinds, groups and axes written out. Equal for equivalent
/// tasks, buffers or kinds of two programs. `cls`: the class of the task or buffer.
std::string identity(const Program& program, ClassId cls, const Task& task);
std::string identity(const Program& program, ClassId cls, const Buffer& buffer);
std::string identity(const Program& program, const Kind& kind);

/// Returns a hash of the program's behaviour: all fields except labels (origin, logical,
/// coordinates of tasks, names of roles and classes, layouts of step buffers, the configuration's
/// text, the purpose).
Hash128 program_hash(const Program& program);
std::string to_dot(const Program& program, ClassId cls);

/// Returns the name of a task in messages and traces: "linear_dw L3 mb2 backward (stage0 task
/// 118)", with its place in the model by graph::layer_name. In a class of several stages the stage
/// is included: "linear L3 stage4 mb2 forward (..)".
std::string task_name(const Program& program, ClassId cls, TaskId task);

}  // namespace hocket::program
