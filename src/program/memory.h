// SPDX-License-Identifier: Apache-2.0
// Memory of a rank of a program. The executor, the check, the simulator, `train` and the report
// take all figures, and their names, from here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Memory is had in pages of this many bytes.
inline constexpr int64_t kPageBytes = 4096;
/// `bytes` in whole pages.
int64_t whole_pages(int64_t bytes);

/// Rows that an expert-parallel rank is planned to receive, relative to even routing. More is legal
/// (addresses are reserved for the worst case) and reported.
inline constexpr double kExpectedRows = 1.25;

/// Space in which the kernels of a lane work, and have their workspace.
inline Space workspace_space(Lane lane) { return lane == Lane::host ? Space::host : Space::device; }

/// Kernels for elements of one or two bytes: the CPU's, whose workspace has room for f32 copies of
/// such operands (ops::workspace_of), or a device's, which take them as they are. Tasks of the host
/// use the CPU's kernels either way.
enum class Kernels : uint8_t { on_copies, native };

/// The workspace of every kind, with these kernels.
std::vector<int64_t> workspaces(const Program& program, Kernels kernels);

/// Planned memory of one rank, in bytes.
struct Memory {
  int64_t persistent = 0;      ///< parameters, optimizer state, KV cache: survive the step
  int64_t inputs_outputs = 0;  ///< written by the host before the step, or read after it
  int64_t step_buffers = 0;    ///< pages of the arena that step buffers and workspaces touch
  int64_t messages = 0;        ///< most that the transport has: sent, or there for a collective
  /// Additional memory of a second program that evaluates on the same ranks. Unknown for measured
  /// memory, since the two share it.
  int64_t evaluation = 0;
  int64_t host = 0;      ///< of buffers in host memory, of both programs; not in the sum
  int64_t reserved = 0;  ///< addresses of the device's arena; not in the sum

  /// Memory that must fit into the device's.
  int64_t total() const {
    return persistent + inputs_outputs + step_buffers + messages + evaluation;
  }
  /// The same where the device is the host itself.
  int64_t with_host() const { return total() + host; }
  bool operator==(const Memory&) const = default;
};

/// Memory limits of a rank; 0: unknown or unlimited.
struct MemoryLimits {
  int64_t device = 0;           ///< of its device
  bool device_is_host = false;  ///< which is the host itself: it has the host's buffers too
  int64_t budget = 0;           ///< stands for a device with memory of its own

  struct Excess {
    int64_t needed = 0, there = 0;
  };
  /// Returns the lesser of the exceeded limits, if any: the one rule by which a rank fits.
  std::optional<Excess> exceeded_by(const Memory& memory) const;
};

/// "16.2 GiB persistent, 705 KiB inputs and outputs, 84.4 GiB step buffers, 96 MiB messages": all
/// parts of the sum, evaluation only if there is one; ", and 2 GiB in host memory" if there is
/// some.
std::string parts_text(const Memory& memory);

/// Returns the memory of a rank of every class, derived from the program alone. Step buffers count
/// at their planned offsets: a ragged one [offset, offset + expected), all others whole; without a
/// memory plan they count as nothing. Messages: the most bytes that a transport can hold of the
/// rank's sent messages, at any speed of the ranks. They include the transport's memory for
/// collectives (Kind::workspace). Symbols count with their bounds. Requires: ids in range.
std::vector<Memory> memory_of(const Program& program, Kernels kernels = Kernels::on_copies);
/// The same in steps where no symbol is more than its value here: pages beyond are not touched.
std::vector<Memory> memory_of(const Program& program, std::span<const int64_t> values);

/// Returns, per class, the bytes of a memory space that `other` needs beyond `program`, if the same
/// ranks run both in turn. They share named tensors and use the same addresses for everything else.
/// Requires: ids in range.
std::vector<int64_t> memory_beyond(const Program& program, const Program& other,
                                   Space space = Space::device);
/// Returns memory_of(program), with the additional memory of an evaluation beside it; null: none.
/// An evaluation with tensors in other layouts (held_otherwise) has memory of its own.
std::vector<Memory> memory_with(const Program& program, const Program* evaluation,
                                Kernels kernels = Kernels::on_copies);

/// Largest address space of a process in bytes: that of x86-64.
inline constexpr int64_t kMaxAddresses = int64_t{1} << 47;
/// Addresses that a rank of the class reserves: arenas as they are said to be, and named buffers.
/// kMaxAddresses + 1 stands for any number beyond, and for an arena of a negative size.
int64_t addresses_of(const RankClass& cls);

/// Addresses [begin, end) of the arena.
struct Range {
  int64_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};
/// The same addresses as disjoint ranges in ascending order, with a gap between any two.
std::vector<Range> joined(std::vector<Range> ranges);
/// Returns the parts of `ranges` outside `others`; both are merged first.
std::vector<Range> without(const std::vector<Range>& ranges, const std::vector<Range>& others);
int64_t total_bytes(const std::vector<Range>& ranges);

/// The pages of the arena of a space that step buffers and workspaces touch, as disjoint ranges in
/// ascending order; `step_buffers` of memory_of is the sum of the device's.
std::vector<Range> planned_pages(const Program& program, ClassId cls, Space space = Space::device,
                                 Kernels kernels = Kernels::on_copies);

/// Returns whether every step buffer that a task uses has an offset.
bool is_planned(const Program& program);

}  // namespace hocket::program
