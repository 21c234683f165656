// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate_schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/inputs.h"
#include "parallel/schedules/schedule.h"
#include "sim/schedule_sim.h"

namespace hocket::cli {

namespace {

/// Largest number of ranks, stages per rank or micro-batches: more than any published schedule has.
constexpr int64_t kMaxShape = 1024;

struct ScheduleOptions {
  std::string schedule;  ///< a built-in name or a CSV file
  /// Without a value: that of the file, or a default.
  std::optional<int64_t> ranks, chunks, micro_batches;
  std::string cost;
  std::string svg, out;  ///< files to write
  bool json = false;
};

struct Shape {
  int ranks = 4, chunks = 1, micro_batches = 8;
};

/// Largest number of passes through a stage: each is three tasks, and messages.
constexpr int64_t kMaxPasses = 1 << 18;

/// Throws Error if an option for the shape contradicts the file.
void expect_same(const char* option, std::optional<int64_t> given, int has,
                 const std::string& file) {
  if (given && *given != has) {
    fail(fmt::format("hocket simulate schedule {}", option), "got {}; {} has {}", *given, file,
         has);
  }
}

/// Returns the shape given by the rows and cells of a file.
Shape shape_of(const parallel::Schedule& schedule, const ScheduleOptions& options) {
  Shape shape;
  shape.ranks = static_cast<int>(schedule.ranks.size());
  int stages = 0;
  shape.micro_batches = 0;
  for (const auto& row : schedule.ranks) {
    for (const parallel::Action& action : row) {
      stages = std::max(stages, action.stage + 1);
      shape.micro_batches = std::max(shape.micro_batches, action.micro_batch + 1);
    }
  }
  if (stages == 0 || stages % shape.ranks != 0) {
    fail(schedule.source, "has {} on {}; expected equally many on each rank",
         counted(stages, "stage"), counted(shape.ranks, "row"));
  }
  shape.chunks = stages / shape.ranks;
  expect_same("--ranks", options.ranks, shape.ranks, schedule.source);
  expect_same("--chunks", options.chunks, shape.chunks, schedule.source);
  expect_same("--micro-batches", options.micro_batches, shape.micro_batches, schedule.source);
  return shape;
}

void expect_bounded(const Shape& shape) {
  const int64_t passes = int64_t{shape.ranks} * shape.chunks * shape.micro_batches;
  if (passes > kMaxPasses) {
    fail("hocket simulate schedule",
         "{} ranks x {} chunks x {} micro-batches are {} passes; expected at most {}", shape.ranks,
         shape.chunks, shape.micro_batches, passes, kMaxPasses);
  }
}

/// Returns the shape given by the options, and the schedule's own number of stages per rank.
Shape shape_of(const ScheduleOptions& options) {
  Shape shape;
  for (const parallel::BuiltIn& built_in : parallel::built_in_schedules()) {
    if (options.schedule == built_in.name) {
      shape.chunks = built_in.chunks > 0 ? built_in.chunks : built_in.shown_chunks;
    }
  }
  shape.ranks = static_cast<int>(options.ranks.value_or(shape.ranks));
  shape.chunks = static_cast<int>(options.chunks.value_or(shape.chunks));
  shape.micro_batches = static_cast<int>(options.micro_batches.value_or(shape.micro_batches));
  return shape;
}

int simulate_alone(const ScheduleOptions& options) {
  // A schedule, of a file or made from its name; simulated; written as CSV, SVG, JSON or text.
  if (options.json && (options.out == "-" || options.svg == "-")) {
    fail("hocket simulate schedule",
         "--json and a file '-' both go to standard output; expected one of them there");
  }
  require_output("hocket simulate schedule --out", options.out, {options.schedule});
  require_output("hocket simulate schedule --svg", options.svg, {options.schedule});
  parallel::Schedule schedule;
  Shape shape;
  if (parallel::is_schedule_file(options.schedule)) {
    schedule = parallel::parse_csv(read_file(options.schedule), options.schedule);
    shape = shape_of(schedule, options);
    expect_bounded(shape);
  } else {
    shape = shape_of(options);
    expect_bounded(shape);
    schedule =
        parallel::make_schedule(options.schedule, shape.ranks, shape.micro_batches, shape.chunks);
    schedule.source = options.schedule;
  }
  parallel::validate(schedule, shape.ranks, shape.micro_batches, true, shape.chunks);
  const sim::ScheduleReport report = sim::simulate_schedule(
      schedule, shape.ranks * shape.chunks, shape.micro_batches, sim::parse_costs(options.cost));
  if (!options.out.empty()) {
    emit(options.out, parallel::to_csv(schedule));
  }
  if (!options.svg.empty()) {
    emit(options.svg, sim::to_svg(report));
  }
  if (options.json) {
    fmt::print("{}\n", sim::to_json(report));
    return 0;
  }
  std::FILE* messages = message_stream(options.out == "-" ? options.out : options.svg);
  fmt::print(messages, "{}", sim::to_text(report));
  for (const std::string& path : {options.out, options.svg}) {
    if (!path.empty() && path != "-") {
      fmt::print(messages, "wrote {}\n", path);
    }
  }
  return 0;
}

}  // namespace

void declare_simulate_schedule(Args& args) {
  auto options = std::make_shared<ScheduleOptions>();
  args.about("replay a pipeline schedule without a model",
             "Simulates a schedule alone: its bubbles, how many activations each rank holds, its "
             "timeline. docs/schedules.md has the built-in ones, docs/new-schedule.md writes one.");
  args.positional("SCHEDULE", &options->schedule,
                  "a name of plan.pp_schedule, or a .csv file in PyTorch's format");
  args.option("--ranks", "N", &options->ranks, "pipeline ranks; default: 4, or the file's rows", 1,
              kMaxShape);
  args.option("--chunks", "N", &options->chunks,
              "stages per rank; default: the schedule's own number", 1, kMaxShape);
  args.option("--micro-batches", "N", &options->micro_batches,
              "micro-batches; default: 8, or the file's", 1, kMaxShape);
  args.option("--cost", "COSTS", &options->cost,
              "times of a forward pass (F), of the two halves of a backward pass (I, W) and of a "
              "message (comm), such as F=1,I=1,W=1,comm=0.1 (defaults: 1, 1, 1, 0); also B "
              "(default: I + W) and FB, an overlapped pair (default: both)");
  args.option("--svg", "FILE", &options->svg, "write the timeline as a picture");
  args.option("--out", "FILE", &options->out, "write the schedule as CSV");
  args.flag("--json", &options->json, "print the report as JSON");
  args.example("hocket simulate schedule zb-h1 --ranks 4 --micro-batches 8 --cost F=1,I=1,W=1",
               "a zero-bubble schedule: its bubbles, its memory, a timeline");
  args.run([options] { return simulate_alone(*options); });
}

}  // namespace hocket::cli
