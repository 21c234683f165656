// SPDX-License-Identifier: Apache-2.0
// Abstract interpretation of the tasks: every buffer holds a piece of a term, or of several terms
// whose sum is not finished. Compute tasks make terms and take pieces by their op's rule;
// communication moves pieces and keeps terms. A computed term that the single-device step does not
// contain is refused where it is made.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "check/context.h"
#include "check/hazards.h"
#include "check/values/families.h"
#include "check/values/packs.h"
#include "check/values/pieces.h"

namespace hocket::check {

class Values {
 public:
  Values(Context& ctx, Reference& reference, const Hazards& hazards);

  /// A task that no other class waits for: local ops, collectives inside a class, messages.
  /// `senders`: for recv, the global tasks of the matching sends (already stepped).
  void step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders);
  /// One collective that crosses classes: the tasks that meet in each sort of instance.
  void meet(std::span<const std::vector<TaskRef>> instances);
  /// The content of this buffer follows from something already refused.
  void lose(ClassId cls, BufferId buffer) { put(cls, buffer, {kUnknown, kAnyPiece}); }
  /// Experts of the whole tensors whose rows a kind works on; 0 if none was seen.
  int64_t experts(program::KindId kind) const { return experts_[kind]; }
  /// After the last task: named buffers hold what the single-device step leaves in them.
  void finish();
  /// Least ratio of what a ragged buffer expects to the rows of even routing; 0: there is none.
  double least_factor() const { return least_factor_; }
  /// After finish(): what lossy codecs made of named buffers.
  const std::vector<Lossy>& lossy() const { return lossy_; }
  std::vector<LossyCodec> lossy_codecs() const;

 private:
  /// What a kind makes of pieces of its inputs, worked out once.
  struct Signature {
    std::vector<PieceId> in;
    std::vector<TypeId> in_types;  ///< logical
    std::vector<program::Begin> begins;
    ClassId cls = program::kNone;  ///< whose begins they are; kNone: none are asked for
    Taken taken;
    std::vector<TypeId> fitting;  ///< by output: logical type last found to fit on any rank, -1
  };

  // Buffers and views (regions.cc).
  /// A region of a base, and what it holds.
  struct Entry {
    CutId region;
    Value value;
  };
  /// A buffer that has views, all along one dim: disjoint regions of it that were written.
  struct Base {
    ClassId cls = program::kNone;
    int32_t dim = program::kNone;  ///< kNone: elements in memory order
    int64_t size = 0;              ///< along the dim
    std::vector<Entry> entries;
  };
  /// Why a region can't be read, and where.
  struct Why {
    std::string text, where;
  };
  struct Bases {
    std::map<BufferId, Base> of;
    std::vector<CutId> region;  ///< by buffer: which part of its base it is
    /// Where a region of a base of so many indices begins, on ranks of other classes too.
    std::map<std::pair<CutId, int64_t>, program::Begin> from;
    /// Of views along a dim, by that, where they begin and by which table.
    std::map<std::array<int64_t, 3>, std::set<int64_t>> lengths;
  };
  void find_regions(ClassId cls);
  CutId region_of(ClassId cls, const program::Begin& from, int64_t length, int64_t size);
  /// What a begin says at coordinates of a role.
  AxisMask axes_of(ClassId cls, program::TableId table) const;
  int64_t begin_at(program::RoleId role, const program::Begin& begin,
                   const graph::Coords& at) const;
  size_t dims_of(ClassId cls, BufferId buffer) const;
  bool has_dims(const Value& value, size_t dims) const;
  /// Null for a buffer that has no views and is none.
  Base* base_of(ClassId cls, BufferId buffer);
  /// What a buffer holds; kUnknown if parts of it do not make a value.
  Value at(ClassId cls, BufferId buffer);
  /// The same for a task, of which that is reported.
  Value read(TaskRef ref, BufferId buffer);
  /// The same after the last task.
  Value left_in(ClassId cls, BufferId buffer);
  void report_untiled(TaskRef ref, BufferId buffer, int32_t reader, const std::string& text,
                      std::string where);
  void put(ClassId cls, BufferId buffer, const Value& value);
  void write_region(Base* base, CutId region, const Value& value);
  /// As a value of so many dims.
  Value read_region(const Base& base, CutId region, size_t dims, Why* why);
  Value read_parts(std::span<const Entry* const> hits, const Base& base, CutId region, Why* why);
  Value read_sums(std::span<const Entry* const> hits, const Base& base, CutId region, Why* why);
  std::string uncovered(const Base& base, CutId region, CutId covered) const;
  Value read_flat(std::span<const Entry* const> hits, const Base& base, CutId region, size_t dims,
                  Why* why);
  CutId rest_of(const Base& base, CutId of, CutId without, bool behind);
  graph::Run place_in(const Base& base, CutId entry, CutId region,
                      const graph::Coords& coords) const;
  /// The part of an entry that a region is at a coordinate, and what the rank has of the entry.
  struct Place {
    graph::Run part;
    int64_t all = 0;
    bool known =
        false;  ///< the part is what a rank of the class has, or of one with the same views
  };
  AxisMask other_classes(const Base& base, CutId entry, CutId region, CutId cut) const;
  std::vector<graph::Run> places_in(const Base& base, CutId entry, CutId region, CutId cut,
                                    int64_t size, AxisMask axes, bool* told) const;
  ClassId class_at(ClassId like, const graph::Coords& coords) const;
  bool has_same_views(ClassId one, ClassId other) const;
  std::vector<graph::Run> told_there(const Base& base, CutId entry, CutId region, AxisMask axes,
                                     std::span<const Place> places) const;
  int64_t length_there(const Base& base, const program::Begin& begin, CutId region,
                       ClassId there) const;
  PieceId part_of(const Base& base, CutId entry, CutId region, PieceId piece, int64_t size);
  Value part_of(const Base& base, const Entry& entry, CutId region);
  void set(ClassId cls, const Task& task, size_t output, Value value, Signature* memo, TaskRef ref);
  void check_expected(ClassId cls, const Task& task, size_t output, PieceId piece, TaskRef ref);
  void lose_outputs(ClassId cls, const Task& task);
  Signature& signature(ClassId cls, const Task& task, const KindInfo& info);
  /// What the begins of a task say on ranks of the class.
  Pieces::Begins begins_of(ClassId cls, const Task& task) const;
  /// True if the value has the local type on all ranks of the class; `uniform`, if given: of any.
  bool fits(const Value& value, TypeId local, ClassId cls, bool* uniform = nullptr);

  // Codecs (codecs.cc).
  /// That a value went through a codec.
  struct Mark {
    std::string codec;
    ExprId term;       ///< that it encoded
    FamilyId addends;  ///< which of them at once, where it is a sum that was not finished
    auto operator<=>(const Mark&) const = default;
  };
  struct Marks {
    std::vector<Mark> list;  ///< sorted, one of each codec and term
    /// Axes along which ranks that should hold the same have parts of different marks: one's own
    /// exactly, those of others as they were decoded.
    AxisMask apart = 0;
    auto operator<=>(const Marks&) const = default;
  };
  MarkId intern_marks(Marks marks);
  /// `axes`: along which ranks differ in which of the two they have.
  MarkId unite_marks(MarkId left, MarkId right, AxisMask axes);
  /// True if both lost as much of the same, of whichever addends.
  bool lost_alike(MarkId left, MarkId right) const;
  /// Of parts of one term in a base, which lost as much, read together; nothing if an index lost
  /// something else on one rank than on another.
  std::optional<MarkId> join_marks(const Base& base, std::span<const Entry* const> hits,
                                   CutId region);
  /// With the addends that Families says of each.
  MarkId with_addends(MarkId marks, const std::function<FamilyId(FamilyId)>& change);
  MarkId from_peer(MarkId marks, const graph::Shift& shift);
  MarkId over_all(MarkId marks, AxisMask over);
  MarkId settled(MarkId marks);
  MarkId marks_at(MarkId marks, const graph::Coords& coords);
  /// Axes along which ranks lost something of other addends.
  AxisMask axes_of_marks(MarkId marks) const;
  bool is_coded(const Value& value) const;
  std::vector<PieceId> coded_pieces(ClassId cls, const Task& reader, const KindInfo& info,
                                    TaskRef ref);
  void encode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref);
  /// Takes the marks off a value, of all tensors in it.
  MarkId take_marks(Value* value);
  void finish_marks(TaskRef at, BufferId buffer, const Value& value);
  /// A named buffer that keeps some of a tensor, and what the step leaves in it.
  struct KeptCopy {
    TaskRef at;
    BufferId buffer;
    Value value;
  };
  /// Elements of a tensor that ranks keep alike: after the same losses, and where ranks along an
  /// axis have different parts exact, at one coordinate of it.
  struct KeptState {
    MarkId marks;
    graph::Coords at;
    std::vector<graph::Run> held = {};
  };
  void add_states(const graph::Tensor& tensor, const KeptCopy& copy, int32_t rank,
                  std::vector<KeptState>* states);
  std::pair<TaskRef, int32_t> holder_of(int32_t tensor, const KeptState& state, int64_t element);
  /// `sets`: which addends were encoded at once, not only how many.
  std::string marks_text(MarkId marks, bool sets) const;
  void refuse_copies(int32_t tensor, const KeptState& one, const KeptState& other,
                     const graph::Run& both);
  void judge_copies();
  void decode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref);

  // Flat buffers of several tensors (buckets.cc).
  bool is_pack(const Value& value) const;
  PackId pack_of(const Value& value) const { return PackId(ref_.terms[value.expr].a); }
  Value pack_value(PackId id) { return {ref_.terms.pack(id.value()), kAnyPiece}; }
  /// The elements of a value in memory order; of a zero, so many. kNone: it has no such order.
  PackId flat(const Value& value, int64_t zeros);
  /// Elements that follow on each other as a value of so many dims: a tensor, if they are whole
  /// rows of one, else a pack, which has one dim. kUnwritten: they are neither.
  Value unflat(PackId id, size_t dims);
  CutId rows_of(PackId id, int64_t width, int64_t size);
  /// Elements of a row of a component, and of all its rows; -1 if ranks differ.
  int64_t row_width(const Value& component);
  int64_t elements_of(const Value& component);
  /// What a named buffer of several tensors holds if these are their terms.
  Value contents(ClassId cls, const program::Buffer& buffer, std::span<const ExprId> terms);
  /// What keeps the slots of a bucket from being filled by their layouts, or null.
  const char* bad_slots(ClassId cls, const program::Buffer& buffer);
  using Pair = std::pair<int32_t, int32_t>;  ///< of components, kNone: zeros
  const std::optional<std::vector<Pair>>& pairs_of(PackId left, PackId right);
  std::optional<Value> add_packs(const Value& left, const Value& right);
  bool move_pack(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
                 size_t operand, Value* value);
  std::optional<Value> pack_from_peer(const Value& value, const graph::Shift& shift);
  class PackTask;
  void compute_packs(ClassId cls, TaskId task, const Task& reader, const KindInfo& info);
  std::string pack_text(PackId id) const;
  /// Axes along which ranks hold something else.
  AxisMask axes_of(const Value& value) const;

  // Sums (sums.cc).
  /// The sum of two values: of two terms in one piece, of two parts of one reduction, or a sum that
  /// stays unfinished. Nothing if their addends run along different axes: no reduction could ever
  /// finish them together.
  std::optional<Value> add(const Value& left, const Value& right);
  /// Axes along which the sum of two values that did not lose as much has other parts exact: those
  /// of the addends, where both are parts of a term; a sum of others is as exact on every rank.
  AxisMask axes_apart(const Value& left, const Value& right) const;
  std::optional<Value> add_terms(const Value& left, const Value& right);
  std::optional<Value> sum_of(const std::vector<Value>& parts);
  std::optional<Value> sum_of_terms(const std::vector<Value>& parts);
  /// The parts of a value, of which there are several only while a sum is unfinished.
  std::vector<Value> parts_of(const Value& value) const;
  void insert_part(std::vector<Value>* parts, Value part);
  AxisMask partial_axes(const Value& value) const;
  /// All of the terms that a value has to do with, whatever of them is there.
  ExprId terms_in(const Value& value);
  void compute(ClassId cls, TaskId task, const Task& reader, const KindInfo& info);
  void refuse_begin(TaskRef ref, const AtRank& wrong);
  /// The routing that placed rows; -1 for what is not routed.
  AppId route_of(const Value& rows);
  void regroup(ClassId cls, const Task& reader, TaskRef ref);
  void merge(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref);
  void add_inputs(ClassId cls, const Task& reader, TaskRef ref);
  /// From a rank to the one that it receives from.
  const graph::Shift& to_peer(ClassId cls, const Task& end);
  void receive(ClassId cls, TaskId task, const Task& end, const Value& value);
  bool is_as_declared(const Value& value, ClassId cls, const program::Buffer& buffer);
  /// What keeps a named buffer from holding (a part of) this tensor of the graph, or null.
  const char* bad_name(const program::Buffer& buffer, int32_t tensor) const;
  /// Of a named buffer before the step; kUnwritten of an output.
  ExprId before_step(const program::Buffer& buffer, int32_t tensor);
  Value declared(ClassId cls, BufferId buffer);
  /// By tensor and micro-batch, -1 for those of the step: who keeps it.
  using Kept = std::map<std::pair<int32_t, int32_t>, std::vector<Holder>>;
  void finish_buffer(ClassId cls, BufferId buffer, Kept* kept);
  void finish_bucket(ClassId cls, BufferId buffer, std::span<const ExprId> want,
                     const Value& value);
  /// `lost`: by operand, what codecs lost of it on all ranks that take part; empty: as it says.
  void collective(ClassId cls, TaskId task, const Task& member, const KindInfo& info,
                  std::span<const MarkId> lost = {});

  // Collectives: false (and reported) if the value does not lie as the op needs it, or if sizes are
  // not those of the rows.
  bool move(TaskRef ref, const KindInfo& info, AxisMask over, size_t operand, Value* value);
  bool move(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
            size_t operand, Value* value);
  /// The same of a value that is no pack: each of its parts is moved, and they must add up again.
  /// `counted`: see Pieces::move.
  bool move_parts(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
                  size_t operand, CutId counted, Value* value);
  /// The tokens whose rows the sizes of an exchange count on each rank; kNone: not known.
  CutId tokens_counted(const Value& sizes) const;
  void refuse_move(TaskRef ref, const KindInfo& info, BufferId buffer, const Value& value,
                   const Moved& moved);
  bool sizes_fit(TaskRef ref, int32_t axis, const Value& rows, PieceId by_token,
                 const Value& sizes);
  bool local_index(ExprId expr) const;
  AxisMask axes_of(const Task& task) const;
  void meet(std::span<const TaskRef> tasks);
  // Transfers (transfers.cc).
  void transfer(std::span<const TaskRef> tasks);
  bool gives_as_said(TaskRef ref, const Value& value);
  AxisMask axes_of_role(program::RoleId role) const;
  PieceId taken_piece(std::span<const TaskRef> takers, const graph::TensorType& logical);
  /// What is in the operands of a task, to be put back.
  struct Saved {
    std::vector<std::pair<BufferId, Value>> values;
    std::vector<std::pair<BufferId, Base>> bases;
  };
  Saved saved_of(TaskRef ref);
  void put_back(ClassId cls, const Saved& saved);
  void refuse_meeting(std::span<const TaskRef> tasks);
  bool alike(std::span<const TaskRef> tasks, bool sums);
  std::vector<MarkId> lost_by_all(std::span<const TaskRef> tasks);
  std::string where_of_two(TaskRef ref, const Value& value, TaskRef other, const Value& theirs);
  std::string untaken(TaskRef taker, int32_t rank, std::span<const TaskRef> givers);
  bool depends_on(const Value& value, int32_t axis) const;
  /// `where`: see Problem; "": that of the value in the buffer.
  void refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
              const char* fix, std::string where = {});

  // The rank at which a rule fails (where.cc).
  /// What a rank holds: tensors one after the other of a pack, else the parts of a sum.
  std::vector<Held> held_at(const Value& value, const graph::Coords& at);
  std::string held_text(const Value& value, const graph::Coords& at);
  /// "rank 2 (edp 1, ep 0)".
  std::string rank_text(ClassId cls, const graph::Coords& at) const;
  graph::Coords coords_of(int32_t rank) const;
  int32_t rank_at(program::RoleId role, const graph::Coords& at) const;
  /// Of the ranks of a class, those of which `wrong` says something; along the axes that matter.
  AtRank first_rank(ClassId cls, AxisMask axes,
                    const std::function<std::string(const graph::Coords&)>& wrong) const;
  std::string at_rank_text(ClassId cls, const AtRank& wrong) const;
  /// "; so on 3 more ranks", beside the first.
  static std::string more_text(int64_t ranks);
  /// Of a value that lacks something, or is none that could be taken.
  std::string where(ClassId cls, const Value& value);
  /// Of two values that do not go together: "rank 0 has {value}{between}{other}{behind}".
  std::string where(ClassId cls, const Value& value, const std::string& between, const Value& other,
                    const std::string& behind);
  /// Of what ranks along an axis bring together.
  std::string where_along(ClassId cls, const Value& value, int32_t axis);
  /// "; missing [8:16) of dim 0" at the rank that where() names: indices of a dim.
  std::string unheld(ClassId cls, const Value& value, int32_t dim);
  std::string where_of_size(ClassId cls, const Value& value, TypeId local);
  /// CheckOptions::on_write.
  void tell_written(TaskRef ref, size_t output, const Value& value);

  // Localisation (explain.cc).
  void explain_unknown(TaskRef ref);
  void explain_unfinished(TaskRef ref, size_t input);
  void explain_pieces(TaskRef ref, const Taken& taken);
  void explain_final(ClassId cls, BufferId buffer, ExprId want, ExprId got);
  std::string describe(ExprId expr) const;
  std::string piece_text(const Value& value) const;
  /// The first axis of a mask.
  const std::string& axis_name(AxisMask axes) const;
  std::string difference(ExprId want, ExprId got, std::vector<TaskRef>* who) const;
  std::string whereabouts(ClassId cls, ExprId want, ExprId got, std::vector<TaskRef>* who);
  std::vector<TaskRef> makers(ExprId expr, ClassId only_class = kNone) const;
  std::vector<TaskRef> carriers(ExprId expr, ClassId only_class = kNone);
  TaskRef misplaced_ancestor(TaskRef ref) const;
  AppId closest(const Task& task, const KindInfo& info) const;

  Context& ctx_;
  Reference& ref_;
  const Hazards& hazards_;
  Pieces pieces_;
  Packs packs_;
  Families families_;
  std::vector<std::vector<Value>> values_;  ///< by class and buffer
  std::vector<Bases> bases_;                ///< by class
  std::set<std::pair<ClassId, BufferId>>
      undeclared_;                                  ///< named buffers that can't be what they say
  std::vector<std::vector<Signature>> signatures_;  ///< by kind
  std::vector<int64_t> experts_;                    ///< by kind, 0: unknown or none
  std::vector<AppId> made_;                         ///< by global task: application computed, -1
  std::map<int32_t, Value> sent_;                   ///< by global task of the send
  std::map<std::pair<program::RoleId, program::Way>, graph::Shift> to_peers_;
  std::vector<std::vector<Value>> unfinished_;  ///< by Expr::a of unfinished sums: their parts
  std::map<std::vector<Value>, ExprId> unfinished_index_;
  // What was worked out before, by all that it depends on: a program has few different regions, in
  // many bases.
  mutable std::map<std::pair<ClassId, ClassId>, bool> same_views_;
  std::map<std::array<int64_t, 4>, CutId> rests_;           ///< of rest_of
  std::map<std::array<int64_t, 7>, PieceId> parts_;         ///< of part_of
  std::map<std::vector<int64_t>, PieceId> joins_;           ///< of read_parts; kNone: of no value
  std::map<std::array<int64_t, 3>, CutId> row_cuts_;        ///< of rows_of
  std::map<Pair, std::optional<std::vector<Pair>>> pairs_;  ///< of pairs_of, by shapes
  double least_factor_ = 0;
  std::vector<ExprId> exprs_;  ///< of the inputs of the task at hand
  std::vector<PieceId> ins_;
  std::vector<TypeId> in_types_;
  std::vector<MarkId> in_marks_;
  MarkId marks_in_ = 0;          ///< of all inputs together
  std::vector<Marks> marks_{1};  ///< 0: none
  std::map<Marks, MarkId> marks_index_{{Marks{}, 0}};
  std::map<MarkId, MarkId> settled_;
  std::vector<Lossy> lossy_;
  /// By codec: what it encoded, and the named buffers that this reaches.
  struct Lost {
    std::set<ExprId> values;
    std::set<std::string> buffers;
  };
  std::map<std::string, Lost> lost_;
  std::map<int32_t, std::vector<KeptCopy>> copies_;  ///< by tensor, if codecs lost anything
};

}  // namespace hocket::check
