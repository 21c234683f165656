// SPDX-License-Identifier: Apache-2.0
// compress (QSGD, Alistarh et al., arXiv 1610.02132; for blocks, EQuARX, arXiv 2506.17615):
// gradient all-reduces carry codes. Codes cannot be added, so every rank decodes the received ones
// and adds them in the order of the ranks, its own part decoded too, and all get the same bits.
// Codes take the routes of grad_sums.h. The device encodes, decodes and adds, or its host, with
// copies of gradients, codes and sums between them. An all-reduce stays plain if codes would move
// more bytes, for vectors, between classes, and for products of different nodes (tied parameters),
// or if plan.grad_codec_of says so.
#include "passes/compress.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ops/op.h"
#include "passes/codecs.h"
#include "passes/grad_sums.h"
#include "passes/pass.h"
#include "passes/writer.h"
#include "program/views.h"

namespace hocket::passes {

using graph::TensorType;
using program::BufferId;
using program::GroupId;
using program::kNone;
using program::Program;
using program::RankClass;
using program::Space;
using program::Task;
using program::TaskId;

namespace {

/// An all-reduce in progress. Each stage but the first starts with tasks that wait for messages. It
/// is listed later, so that other work of the device does not wait with it.
struct Begun {
  const CodecOps* codec = nullptr;
  Space memory = Space::device;  ///< memory of the encoding, decoding and adding side
  size_t origin = 0;             ///< place of the task that it stands for
  std::vector<BufferId> buffers;
  std::deque<std::vector<Task>> stages;
};

class Compression {
 public:
  Compression(Program& program, program::ClassId cls, Codecs* codecs, int32_t* tag)
      : program_(program),
        writer_(program, cls),
        views_(program, cls),
        sums_(program, cls),
        codecs_(*codecs),
        tag_(*tag) {}

  void run() {
    // Replaces a gradient all-reduce by the stages of its encoded part, and the rest of its list. A
    // stage is emitted whenever another all-reduce starts; all remaining ones before a task that
    // touches its buffers.
    const std::vector<Task> tasks = std::move(writer_.list().tasks);
    renamed_.assign(tasks.size(), kNone);
    for (size_t i = 0; i < tasks.size(); ++i) {
      const auto waits = [&](const Begun& sum) { return touches(sum, tasks[i]); };
      while (std::any_of(begun_.begin(), begun_.end(), waits)) {
        go_on();
      }
      const std::vector<size_t> coded = coded_operands(tasks[i]);
      if (!coded.empty()) {
        go_on();
      }
      for (size_t operand : coded) {
        begin(tasks[i], i, operand);
      }
      if (coded.empty()) {
        made_.push_back(tasks[i]);
      } else if (coded.size() < tasks[i].in.size()) {
        made_.push_back(rest_of(tasks[i], coded));
      }
      renamed_[i] = made_.size() - 1;
    }
    while (!begun_.empty()) {
      go_on();
    }
    for (Task& task : made_) {
      for (TaskId& dep : task.deps) {
        dep = renamed_[dep];
      }
    }
    writer_.list().tasks = std::move(made_);
  }

 private:
  /// Returns whether the task depends on the sum, or uses its buffers or aliased memory.
  bool touches(const Begun& sum, const Task& task) const {
    const auto waited_for = [&](TaskId dep) { return std::cmp_equal(dep.value(), sum.origin); };
    if (std::any_of(task.deps.begin(), task.deps.end(), waited_for)) return true;
    return std::any_of(sum.buffers.begin(), sum.buffers.end(), [&](BufferId buffer) {
      const std::span<const BufferId> parts = views_.meets(buffer);
      const auto meets = [&](BufferId other) {
        return other == buffer || std::find(parts.begin(), parts.end(), other) != parts.end();
      };
      return std::any_of(task.in.begin(), task.in.end(), meets) ||
             std::any_of(task.out.begin(), task.out.end(), meets);
    });
  }

  std::vector<size_t> coded_operands(const Task& task) {
    std::vector<size_t> coded;
    for (size_t operand = 0; operand < task.in.size() && sums_.is_sum(task); ++operand) {
      const auto takes_it = [&](const CodecOps& codec) {
        return sums_.takes(codec, task, operand);
      };
      codecs_.note(sums_.parameter(task, operand), takes_it);
      const CodecOps* codec = codecs_.of(sums_.parameter(task, operand));
      if (codec != nullptr && takes_it(*codec)) {
        coded.push_back(operand);
      }
    }
    return coded;
  }
  Task rest_of(const Task& task, const std::vector<size_t>& coded) {
    const program::Kind kind = program_.kind(task);
    std::vector<BufferId> in, out;
    for (size_t operand = 0; operand < task.in.size(); ++operand) {
      if (std::find(coded.begin(), coded.end(), operand) != coded.end()) continue;
      in.push_back(task.in[operand]);
      out.push_back(task.out[operand]);
    }
    return writer_.collective(kind.communication, kind.attrs, task.group, in, out, task);
  }

  void begin(const Task& task, size_t place, size_t operand) {
    const TensorType type = writer_.type(task.in[operand]);
    Begun sum;
    const std::string& parameter = sums_.parameter(task, operand);
    sum.codec = codecs_.of(parameter);
    sum.memory = codecs_.is_on_host(parameter) ? Space::host : Space::device;
    sum.origin = place;
    sum.buffers = {task.in[operand], task.out[operand]};
    sum.stages.emplace_back();
    const BufferId own = in_memory(sum.memory, task.in[operand], task, &sum);
    const BufferId total =
        sum.memory == Space::device ? task.out[operand] : writer_.step(type, sum.memory);
    add_up(own, total,
           best_routes(*sum.codec, type, sums_.axes_of(task), codecs_.route_of(parameter)).axes,
           task, &sum);
    if (total != task.out[operand]) {
      sum.stages.back().push_back(writer_.copy_over(total, task.out[operand], task));
    }
    move_on(&sum);
    begun_.push_back(std::move(sum));
  }

  /// The next stage of every sum that has begun.
  void go_on() {
    for (Begun& sum : begun_) {
      move_on(&sum);
    }
    std::erase_if(begun_, [](const Begun& sum) { return sum.stages.empty(); });
  }
  void move_on(Begun* sum) {
    std::vector<Task>& stage = sum->stages.front();
    std::move(stage.begin(), stage.end(), std::back_inserter(made_));
    sum->stages.pop_front();
    renamed_[sum->origin] = made_.size() - 1;
  }

  /// Adds the ranks' parts of `from` along the axes of all levels into `to`.
  void add_up(BufferId from, BufferId to, std::vector<AxisSum> levels, const Task& task,
              Begun* sum) {
    // Codes of hop k come from the rank k before, and their values lie in the slot of that rank:
    // slots are then added up in one order everywhere. By blocks the own codes are cut into those
    // for others, the sum of a block is encoded again, and all gather all blocks.
    const AxisSum level = levels.front();
    levels.erase(levels.begin());
    const TensorType type = writer_.type(from);
    TensorType part = type;
    if (level.by_blocks) {
      part.dims[0] /= level.ranks;
    }
    const int64_t rows = part.dims[0];
    TensorType slots = part;
    slots.dims[0] *= level.ranks;
    const BufferId decoded = writer_.step(slots, sum->memory);
    const std::vector<BufferId> codes = encoded(from, task, sum);
    const std::vector<BufferId> leaving = all_in_memory(Space::device, codes, task, sum);
    const auto send_part = [&](BufferId code, int32_t hop) {
      return level.by_blocks ? writer_.part(code, 0, rows, 0, moved(level, hop, rows)) : code;
    };
    std::vector<std::vector<BufferId>> come(static_cast<size_t>(level.ranks));
    for (BufferId code : codes) {
      come[0].push_back(send_part(code, 0));
    }
    for (int32_t hop = 1; hop < level.ranks; ++hop) {
      for (BufferId code : leaving) {
        const BufferId sent = send_part(code, hop);
        const BufferId came = writer_.step(TensorType(writer_.type(sent)));
        come[static_cast<size_t>(hop)].push_back(came);
        sum->stages.back().push_back(
            writer_.message(comm::Role::send, sent, {level.axis, hop}, tag_, task));
        sum->stages.back().push_back(
            writer_.message(comm::Role::receive, came, {level.axis, -hop}, tag_, task));
        ++tag_;
      }
    }
    sum->stages.emplace_back();
    for (int32_t hop = 0; hop < level.ranks; ++hop) {
      const BufferId slot = writer_.part(decoded, 0, rows, 0, moved(level, -hop, rows));
      const std::vector<BufferId> here =
          all_in_memory(sum->memory, come[static_cast<size_t>(hop)], task, sum);
      work(sum->codec->decode->name, CodecOps::back_to(type), here, {slot}, task, sum);
    }
    const BufferId total = level.by_blocks ? writer_.step(part, sum->memory) : to;
    for (int32_t rank = 1; rank < level.ranks; ++rank) {
      const BufferId before = rank == 1 ? writer_.part(decoded, 0, rows, 0) : total;
      const BufferId slot = writer_.part(decoded, 0, rows, rank * rows);
      work(ops::of(ops::Meaning::sum).name, {}, {before, slot}, {total}, task, sum);
    }
    if (!levels.empty()) {
      add_up(total, total, std::move(levels), task, sum);
    }
    if (level.by_blocks) {
      gather(total, to, level, task, sum);
    }
  }

  /// Gathers the finished blocks of rows along the axis as codes, and decodes all of them.
  void gather(BufferId block, BufferId to, const AxisSum& level, const Task& task, Begun* sum) {
    const GroupId group = program_.intern(program::group_over({level.axis}, writer_.list().role));
    std::vector<BufferId> all;
    for (BufferId code : all_in_memory(Space::device, encoded(block, task, sum), task, sum)) {
      const std::vector<TensorType> mine{writer_.type(code)};
      const auto found = comm::resharding(mine[0], graph::Placement::split(0),
                                          graph::Placement::replicate(), level.ranks);
      HOCKET_CHECK(found, "rows of {} can't be gathered", to_string(mine[0]));
      all.push_back(writer_.step(found->out.back()));
      sum->stages.back().push_back(
          writer_.collective(found->op->id, found->attrs, group, {code}, {all.back()}, task));
    }
    sum->stages.emplace_back();
    work(sum->codec->decode->name, CodecOps::back_to(writer_.type(to)),
         all_in_memory(sum->memory, all, task, sum), {to}, task, sum);
  }

  std::vector<BufferId> encoded(BufferId from, const Task& task, Begun* sum) {
    std::vector<BufferId> codes;
    for (const TensorType& code : sum->codec->codes(writer_.type(from))) {
      codes.push_back(writer_.step(code, sum->memory));
    }
    work(sum->codec->encode->name, {}, {from}, codes, task, sum);
    return codes;
  }

  /// Appends an op of the encoding side to the current stage.
  void work(const std::string& op, const graph::Attrs& attrs, std::vector<BufferId> in,
            std::vector<BufferId> out, const Task& task, Begun* sum) {
    Task made = writer_.local(op, attrs, std::move(in), std::move(out), task);
    if (sum->memory == Space::host) {
      made.lane = program::Lane::host;
    }
    sum->stages.back().push_back(std::move(made));
  }

  /// Returns the buffer in this memory: itself, or a copy made in this stage.
  BufferId in_memory(Space memory, BufferId buffer, const Task& task, Begun* sum) {
    if (writer_.list().buffers[buffer].space == memory) return buffer;
    const BufferId copy = writer_.step(TensorType(writer_.type(buffer)), memory);
    sum->stages.back().push_back(writer_.copy_over(buffer, copy, task));
    return copy;
  }
  std::vector<BufferId> all_in_memory(Space memory, std::vector<BufferId> buffers, const Task& task,
                                      Begun* sum) {
    for (BufferId& buffer : buffers) {
      buffer = in_memory(memory, buffer, task, sum);
    }
    return buffers;
  }

  /// Returns the offsets of the block of the rank `by` further along the axis.
  program::TableId moved(const AxisSum& level, int32_t by, int64_t rows) {
    program::Table table{.role = writer_.list().role, .axes = {level.axis}, .values = {}};
    for (int32_t rank = 0; rank < level.ranks; ++rank) {
      table.values.push_back((rank + by + level.ranks) % level.ranks * rows);
    }
    return program_.intern(std::move(table));
  }

  Program& program_;
  Writer writer_;
  const program::Views views_;  ///< of the buffers that there were
  const GradSums sums_;
  Codecs& codecs_;
  int32_t& tag_;
  std::vector<Task> made_;
  std::vector<TaskId> renamed_;  ///< by place in the old list: that in the new one
  std::deque<Begun> begun_;
};

void run_compress(Program& program, const GradCodecOptions& options) {
  Codecs codecs(options);
  if (!codecs.any()) return;
  const int32_t first_tag = next_tag(program);
  int32_t tag = first_tag;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    Compression(program, cls, &codecs, &tag).run();
  }
  receive_in_order(program, first_tag);
  const bool trains = program.purpose.empty();
  if (trains && codecs.any_known()) {
    codecs.expect_matched();
  } else if (trains && tag == first_tag && program.num_ranks() > 1) {
    log_warning(
        "{}, but no sum of gradients travels as codes: they are summed by none, or split by "
        "plan.shard, or too small (docs/program.md)",
        options.grad_codec == kNoCodec ? "plan.grad_codec_of names codecs"
                                       : "plan.grad_codec is " + options.grad_codec);
  }
}

}  // namespace

Pass pass_compress() {
  return program_pass(
      "compress", "sends gradient all-reduces as codes (plan.grad_codec, plan.grad_codec_of)",
      false, {"grad_codec=identity", "grad_codec=int8", "grad_codec_of=[\"* identity host\"]"},
      run_compress);
}

}  // namespace hocket::passes
