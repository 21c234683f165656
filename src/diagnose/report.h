// SPDX-License-Identifier: Apache-2.0
// Report of a run: plain data, and one self-contained HTML page made from it (no external
// resources, works offline, light and dark). A part without data is replaced by one line that says
// so. docs/outputs.md describes the page.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/metrics.h"
#include "program/memory.h"
#include "trace/trace.h"

namespace hocket::diagnose {

/// A table of facts: {"Model", {{"layers", "4"}, {"experts", "8, 2 per token"}}}.
struct FactGroup {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
};

/// Baseline for the held-out loss.
struct Baseline {
  std::string name;  ///< "xz -9e", "Witten-Bell trigram"
  double bits_per_byte = kMissing;
  std::string what;  ///< one clause: "each held-out file on its own"
};

/// Tasks of one kind, per step, averaged over the ranks.
struct KindTime {
  std::string kind;
  std::string lane;  ///< lane that most of them ran in
  double calls = 0;
  double seconds = 0;  ///< sum of the durations
  double flops = 0;
  double bytes = 0;
  double predicted_seconds = kMissing;
  /// Waiting for others in a predicted communication. It is part of `predicted_seconds`, but not of
  /// the `seconds` of a step that is only simulated.
  double waiting = kMissing;
};

/// Breakdown of a rank's step into seconds that add up to it.
struct RankShare {
  std::string name;    ///< "rank 0 (stage 0), for 8"
  double compute = 0;  ///< in the compute lane
  double exposed = 0;  ///< communication that no computation overlaps
  double bubble = 0;   ///< waiting for another pipeline stage
  double idle = 0;     ///< other waits
};

/// One rectangle of step memory: bytes [offset, offset + bytes) from `begin` to `end`.
struct MemoryBlock {
  std::string name;           ///< "output of linear L3 mb0"
  std::string category;       ///< one of kMemoryCategories
  double begin = 0, end = 0;  ///< seconds since the step's start, or task index
  int64_t offset = 0, bytes = 0;
};
/// Categories of blocks, in the order of the legend.
inline constexpr std::array<const char*, 6> kMemoryCategories = {
    "kept for backward",  "forward only", "backward only",
    "parameter gradient", "optimizer",    "workspace"};

/// Memory of one rank class.
struct MemoryPlan {
  std::string name;       ///< "stage 0"
  bool in_tasks = false;  ///< begin and end count tasks instead of seconds
  program::Memory planned;
  program::Memory measured;  ///< of the rank that used most; all 0: not measured
  /// Step buffers and workspaces. Reserved ranges that are not meant to be used are cut out of the
  /// offsets, so that they end at planned.step_buffers.
  std::vector<MemoryBlock> blocks;
  /// `planned.persistent` by group: {"parameters", bytes}, {"optimizer state", bytes}.
  std::vector<std::pair<std::string, int64_t>> persistent;
};

struct Sample {
  std::string prompt, text;  ///< text follows the prompt
  std::string sampling;      ///< "temperature 0.8, top-p 0.95, seed 1"
  std::string language;      ///< "c++": highlighted; empty: plain text
  std::string when = {};     ///< "before training"; empty: after it
};

/// A training sequence as the model reads it.
struct DataExample {
  std::string place;                                ///< "chat.jsonl:17, chosen"
  int64_t tokens = 0, trained = 0;                  ///< all, and those that the loss is of
  std::vector<std::pair<bool, std::string>> parts;  ///< its text in turn; true: trained
};
/// Number of examples with at most `most` tokens, and more than the `most` before it.
struct LengthCount {
  int64_t most = 0, count = 0;
};
struct ReportFile {
  std::string name, what;
  int64_t bytes = 0;
};
struct Command {
  std::string command, what;
};

struct ReportData {
  std::string title;     ///< "Quickstart: a small mixture of experts learns C++ headers"
  std::string subtitle;  ///< "qwen3_moe · 9.2 M parameters · dp 1"
  std::string date;      ///< ISO 8601, shown unchanged
  std::string command;   ///< command that made this run
  std::string version;   ///< of hocket
  std::string status;    ///< "finished", "stopped at step 300"; empty: not shown

  /// Set if the step was only predicted: `predicted`, `kinds` (their seconds) and `ranks` are of
  /// the prediction, and parts that only a run has are left out.
  bool simulated = false;
  double dollars_per_m_tokens = kMissing;  ///< US dollars per million tokens
  std::vector<RankShare> ranks;

  std::vector<FactGroup> facts;             ///< Model, Plan, Machine, Data, Check, ...
  std::string data_name = "held-out text";  ///< validation data: "held-out C++ headers"

  double parameters = kMissing, active_parameters = kMissing;
  double flops_per_step = kMissing;       ///< of the model, all ranks (MFU's numerator)
  int32_t world = 1;                      ///< ranks: rates per device times this are the run's
  double peak_flops = kMissing;           ///< per device; the denominator of MFU
  std::string peak_flops_what;            ///< "measured GEMM rate of 2 threads, f32"
  double memory_bandwidth = kMissing;     ///< per device, bytes/s
  double final_bits_per_byte = kMissing;  ///< on all held-out files; else the last evaluation's
  std::vector<Baseline> baselines;        ///< from the easiest to the hardest
  std::string prediction_provenance;      ///< "98 % of the time from tasks timed in isolation"
  /// `settled_step`: first step that is compared with the prediction (caches and clocks warm up
  /// before). If the run ended earlier, all steps from `first_step` on are compared, the first one
  /// since the run was last started.
  int64_t first_step = 0, settled_step = 20;
  double predicted_step_s = kMissing;  ///< before the first step; else from the metrics
  /// Machine speed in settled steps over its speed while tasks were timed. A step's time multiplied
  /// by this compares with the prediction at equal speed. `speed_moved`: its spread (MachineSpeed).
  double speed_ratio = kMissing, speed_moved = kMissing;
  int64_t tokens_per_step = 0;  ///< of all ranks; for simulations only

  Metrics metrics;
  std::vector<KindTime> kinds;
  int64_t kinds_steps = 0;         ///< number of steps averaged in `kinds`
  double kinds_step_s = kMissing;  ///< mean duration of those steps
  trace::Trace step;               ///< measured timeline, one step
  trace::Trace predicted;          ///< the simulator's timeline of one step
  std::vector<MemoryPlan> memory;
  std::vector<Sample> samples;
  std::vector<DataExample> examples;
  std::vector<LengthCount> lengths;  ///< of all examples, ascending
  std::string lengths_text;          ///< "12 examples, of 9 tokens to 64, median 20"
  std::string config;                ///< resolved run.yaml
  std::vector<ReportFile> files;
  std::vector<Command> next;       ///< commands to try next
  std::vector<std::string> notes;  ///< effects not modelled, problems
};

/// Writes the page atomically. At most 2 MB: long series are thinned, and timelines of many tasks
/// are cut to whole ranks, beside the passes of all ranks; the page says so. Throws Error (exit
/// code 1) if a write fails.
void write_report_html(const ReportData& report, const std::string& path);

/// Returns the page as text.
std::string report_html(const ReportData& report);
/// Returns the data of the page as JSON that is safe inside <script>.
std::string report_json(const ReportData& report);

}  // namespace hocket::diagnose
