// SPDX-License-Identifier: Apache-2.0
// The value of every buffer of every class, as of the tasks interpreted so far.
//
// A buffer that has views is a *base*: a list of disjoint regions, each with its value. A write
// replaces the old content of its region. A read finds the value of its region, or joins the values
// of several regions that tile it. A region is a cut of the base: one run at every coordinate.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check/values/value_text.h"

namespace hocket::check {

/// Reason why a region holds no value, and the rank at which that shows (Problem::where).
struct Unreadable {
  std::string text, where;
};

class BufferState {
 public:
  BufferState(const Context& ctx, const Reference& reference, ValueAlgebra& algebra,
              const ValueText& text);
  /// Adds the next class. `before`: values of its buffers before the step, by buffer.
  void add_class(std::vector<Value> before);

  /// Returns the value of a buffer; kUnknown if its parts do not make one value.
  Value at(ClassId cls, BufferId buffer) const;
  /// Returns the value of a buffer like at(), and the reason in `why` if there is none.
  Value read(ClassId cls, BufferId buffer, Unreadable* why) const;
  void put(ClassId cls, BufferId buffer, const Value& value);
  /// Returns the value of a buffer that is neither a base nor a view, else null.
  const Value* plain(ClassId cls, BufferId buffer) const {
    return base_of(cls, buffer) ? nullptr : &values_[cls][buffer];
  }

  /// Content of the operands of a task.
  struct Saved;
  Saved save(TaskRef ref) const;
  void restore(ClassId cls, const Saved& saved);

  /// The application that a task (by global index) computed; -1 if none.
  AppId application(int32_t global_task) const { return applications_[global_task]; }
  void set_application(int32_t global_task, AppId app) { applications_[global_task] = app; }
  int32_t num_tasks() const { return static_cast<int32_t>(applications_.size()); }

 private:
  /// A written region of a base.
  struct Entry {
    CutId region;
    Value value;
  };
  /// All views of a base run along one dim.
  struct Base {
    ClassId cls = program::kNone;
    int32_t dim = program::kNone;  ///< kNone: elements in memory order
    int64_t size = 0;              ///< along the dim
    std::vector<Entry> entries;    ///< disjoint
  };
  struct Bases {
    std::map<BufferId, Base> of;
    std::vector<CutId> region;  ///< by buffer: its region of its base
    /// By region and size of the base: where the region begins, on ranks of other classes too.
    std::map<std::pair<CutId, int64_t>, program::PieceOffset> from;
    /// By dim, begin and table: lengths of the views that begin there.
    std::map<std::array<int64_t, 3>, std::set<int64_t>> lengths;
  };
  /// The part of an entry that lies in a region, on the rank at one coordinate.
  struct Share {
    graph::Run part;           ///< within the rank's indices of the entry
    int64_t entry_length = 0;  ///< number of the rank's indices of the entry
    bool exact = false;        ///< the rank's class has the views of the base's class
  };
  /// Returns the base of a view, or the base itself; null for other buffers.
  const Base* base_of(ClassId cls, BufferId buffer) const;
  size_t dims_of(ClassId cls, BufferId buffer) const;
  void find_regions(ClassId cls);
  CutId region_of(ClassId cls, const program::PieceOffset& from, int64_t length, int64_t size);
  void write_region(Base* base, CutId region, const Value& value);
  CutId rest_of(const Base& base, CutId region, CutId removed, bool behind) const;

  // Reads (read_region.cc). `dims`: dims of the buffer that is read.
  Value read_region(const Base& base, CutId region, size_t dims, Unreadable* why) const;
  Value read_parts(std::span<const Entry* const> hits, const Base& base, CutId region,
                   Unreadable* why) const;
  Value read_sums(std::span<const Entry* const> hits, const Base& base, CutId region,
                  Unreadable* why) const;
  Value read_flat(std::span<const Entry* const> hits, const Base& base, CutId region, size_t dims,
                  Unreadable* why) const;
  std::string uncovered(const Base& base, CutId region, CutId covered) const;
  std::optional<MarkId> join_marks(const Base& base, std::span<const Entry* const> hits,
                                   CutId region) const;

  // Parts of an entry, on ranks of other classes too.
  PieceId part_of(const Base& base, CutId entry, CutId region, PieceId piece, int64_t size) const;
  Value part_of(const Base& base, const Entry& entry, CutId region) const;
  /// The run of a region of a base at a coordinate; an empty run at 0 if there is none.
  graph::Run run_of(const Base& base, CutId region, const graph::Coords& coords) const;
  graph::Run run_in(const Base& base, CutId entry, CutId region, const graph::Coords& coords) const;
  AxisMask other_classes(const Base& base, CutId entry, CutId region, CutId cut) const;
  std::vector<graph::Run> shares_in(const Base& base, CutId entry, CutId region, CutId cut,
                                    int64_t size, AxisMask axes, bool* certain) const;
  std::vector<graph::Run> shares_of_tables(const Base& base, CutId entry, CutId region,
                                           AxisMask axes, std::span<const Share> shares) const;
  int64_t length_there(const Base& base, const program::PieceOffset& begin, CutId region,
                       ClassId there) const;
  ClassId class_at(ClassId like, const graph::Coords& coords) const;
  bool has_same_views(ClassId one, ClassId other) const;

  const Context& ctx_;
  const Reference& ref_;
  ValueAlgebra& algebra_;
  const ValueText& text_;
  std::vector<std::vector<Value>> values_;  ///< by class and buffer
  std::vector<Bases> bases_;                ///< by class
  std::vector<AppId> applications_;         ///< by global task
  // Results by all that they depend on: a program has few different regions, in many bases.
  mutable std::map<std::pair<ClassId, ClassId>, bool> same_views_;
  mutable std::map<std::array<int64_t, 4>, CutId> rests_;    ///< of rest_of
  mutable std::map<std::array<int64_t, 7>, PieceId> parts_;  ///< of part_of
  mutable std::map<std::vector<int64_t>, PieceId> joins_;    ///< of read_parts; kNone: no value
};

struct BufferState::Saved {
  std::vector<std::pair<BufferId, Value>> values;
  std::vector<std::pair<BufferId, Base>> bases;
};

}  // namespace hocket::check
