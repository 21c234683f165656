// SPDX-License-Identifier: Apache-2.0
// What a rank of a program takes of memory. The executor, the check, the simulator, `train` and the
// report all take their figures, and the words for them, from here.
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

/// Where the kernels of a lane have their workspace: where they work.
inline Space workspace_space(Lane lane) { return lane == Lane::host ? Space::host : Space::device; }

/// Whose kernels compute with elements of one or two bytes: the CPU's, whose workspace has room for
/// f32 copies of such operands (ops::workspace_of), or those of a device which take them as they
/// are. What its host computes, the CPU's kernels do either way.
enum class Kernels : uint8_t { on_copies, native };

/// The workspace of every kind, with these kernels.
std::vector<int64_t> workspaces(const Program& program, Kernels kernels);

/// Planned memory of one rank, in bytes.
struct Memory {
  int64_t persistent = 0;      ///< parameters, optimizer state, KV cache: what survives the step
  int64_t inputs_outputs = 0;  ///< written by the host before the step, or read after it
  int64_t step_buffers = 0;    ///< pages of the arena that step buffers and workspaces touch
  int64_t messages = 0;        ///< most that the transport has: sent, or there for a collective
  /// What a second program, which evaluates on the same ranks, takes beyond this one. Of measured
  /// memory it is not known apart: the two share what they have.
  int64_t evaluation = 0;
  int64_t host = 0;      ///< of buffers in host memory, of both programs; not in the sum
  int64_t reserved = 0;  ///< addresses of the device's arena; not in the sum

  /// What must fit into the device's memory.
  int64_t total() const {
    return persistent + inputs_outputs + step_buffers + messages + evaluation;
  }
  /// Where the device is the host itself.
  int64_t with_host() const { return total() + host; }
  bool operator==(const Memory&) const = default;
};

/// What memory there is for a rank; 0: unknown, or as much as is asked for.
struct MemoryLimits {
  int64_t device = 0;           ///< of its device
  bool device_is_host = false;  ///< which is the host itself: it has the host's buffers too
  int64_t budget = 0;           ///< stands for a device with memory of its own

  struct Excess {
    int64_t needed = 0, there = 0;
  };
  /// Whether a rank fits, wherever that is asked: none if it does. Of two limits that it exceeds
  /// the lesser.
  std::optional<Excess> exceeded_by(const Memory& memory) const;
};

/// "16.2 GiB persistent, 705 KiB inputs and outputs, 84.4 GiB step buffers, 96 MiB messages": all
/// parts of the sum, evaluation only if there is one; ", and 2 GiB in host memory" if there is
/// some.
std::string parts_text(const Memory& memory);

/// Memory of a rank of every class, from what the program says and nothing else. Step buffers count
/// by their planned offsets: a ragged one takes what it is expected to hold, [offset, offset +
/// expected), all others their whole size; without a memory plan they count as nothing. Messages:
/// the most bytes that a transport can hold for what the rank has sent and the receiver has not
/// taken yet, whatever the speed of the ranks, and what collectives take of it (Kind::workspace).
/// Symbols count with their bounds. The program's ids must be in range.
std::vector<Memory> memory_of(const Program& program, Kernels kernels = Kernels::on_copies);
/// The same in steps where no symbol is more than its value here: pages beyond are not touched.
std::vector<Memory> memory_of(const Program& program, std::span<const int64_t> values);

/// Bytes of a memory space that `other` takes beyond `program`, by class, where the same ranks run
/// both in turn. They share the named tensors and use the same addresses for all else: what either
/// needs, both have. Ids must be in range.
std::vector<int64_t> memory_beyond(const Program& program, const Program& other,
                                   Space space = Space::device);
/// memory_of(program), together with what a program that evaluates beside it takes beyond; null:
/// there is none. One that holds some tensor otherwise (held_otherwise) has memory of its own.
std::vector<Memory> memory_with(const Program& program, const Program* evaluation,
                                Kernels kernels = Kernels::on_copies);

/// Most addresses that a process has, in bytes: what x86-64 gives to one.
inline constexpr int64_t kMostAddresses = int64_t{1} << 47;
/// Addresses that a rank of the class reserves: arenas as they are said to be, and named buffers.
/// kMostAddresses + 1 stands for any number beyond, and for an arena of a negative size.
int64_t addresses_of(const RankClass& cls);

/// Addresses [begin, end) of the arena.
struct Range {
  int64_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};
/// The same addresses as disjoint ranges in ascending order, with a gap between any two.
std::vector<Range> joined(std::vector<Range> ranges);
/// What lies in `ranges` and not in `others`; both joined.
std::vector<Range> without(const std::vector<Range>& ranges, const std::vector<Range>& others);
int64_t total_bytes(const std::vector<Range>& ranges);

/// The pages of the arena of a space that step buffers and workspaces touch, as disjoint ranges in
/// ascending order; `step_buffers` of memory_of is the sum of the device's.
std::vector<Range> planned_pages(const Program& program, ClassId cls, Space space = Space::device,
                                 Kernels kernels = Kernels::on_copies);

/// True if every step buffer that a task uses has an offset.
bool is_planned(const Program& program);

}  // namespace hocket::program
