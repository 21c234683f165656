// SPDX-License-Identifier: Apache-2.0
// compress (QSGD, Alistarh et al., arXiv 1610.02132; of blocks, EQuARX, arXiv 2506.17615): sums of
// gradients travel as codes. Codes are not added up, so every rank decodes what comes, adds it up
// in the order of the ranks, its own part as it was decoded, and all end with the same bits.
//
// Along one axis of n ranks there are two ways, of which the one that moves fewer bytes is taken,
// or the one that plan.grad_codec_of says:
//   at once     every rank gets all codes of all others: (n - 1) x codes
//   by blocks   every rank gets a block of rows of all others, adds it up, encodes the sum, and all
//               gather the codes of sums: 2 (n - 1) / n x codes
// Of several axes the innermost comes first, whose ranks are nearest; by blocks, the others then
// sum up a block each. A sum stays what it is if it would move fewer bytes than the codes, is of
// vectors, meets other classes, or is of products of different nodes (tied parameters), or if
// plan.grad_codec_of says so of the parameter whose gradient it is.
#include "passes/compress.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "graph/names.h"
#include "ops/op.h"
#include "passes/codecs.h"
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
using program::Task;
using program::TaskId;

namespace {

/// The parameter of which a named buffer holds an optimizer state, or the gradient for the host;
/// empty: neither, or of several.
std::string parameter_of(const program::Buffer& buffer) {
  if (buffer.slots.size() > 1) return "";
  const std::string_view name = buffer.slots.empty() ? buffer.name : buffer.slots[0].tensor;
  for (const std::string_view of :
       {graph::names::kExpAvgOf, graph::names::kExpAvgSqOf, graph::names::kGradOf}) {
    if (name.starts_with(of)) return std::string(name.substr(of.size()));
  }
  return "";
}

/// A step of a sum along one axis.
struct Level {
  int32_t axis = 0;
  int32_t ranks = 1;
  bool by_blocks = false;
};
struct Ways {
  std::vector<Level> levels;
  double bytes = 0;  ///< through a rank's link
};

/// The way of least bytes to sum up `type` along the axes, the last one first, or that of `route`
/// along all axes whose ranks rows divide into.
Ways best_ways(const CodecOps& codec, TensorType type, std::vector<Level> axes,
               Route route = Route::least_bytes) {
  if (axes.empty()) return {};
  Level level = axes.back();
  axes.pop_back();
  const double n = level.ranks;
  const std::vector<TensorType> codes = codec.codes(type);
  double bytes = 0;
  for (const TensorType& code : codes) {
    bytes += static_cast<double>(code.bytes());
  }
  Ways best = best_ways(codec, type, axes, route);
  best.bytes += (n - 1) * bytes;
  level.by_blocks = false;
  best.levels.insert(best.levels.begin(), level);
  if (route == Route::at_once || !codec.by_rows(type) || !type.dims[0].divides_into(level.ranks)) {
    return best;
  }
  type.dims[0] /= level.ranks;
  Ways blocks = best_ways(codec, type, std::move(axes), route);
  blocks.bytes += 2 * (n - 1) / n * bytes;
  level.by_blocks = true;
  blocks.levels.insert(blocks.levels.begin(), level);
  return route == Route::by_blocks || blocks.bytes < best.bytes ? blocks : best;
}

/// A sum that has begun. Each stage but the first begins with what waits for messages: it is
/// listed later, so that what the device does meanwhile does not wait with it.
struct Begun {
  const CodecOps* codec = nullptr;
  size_t origin = 0;  ///< place of the task that it stands for
  std::vector<BufferId> buffers;
  std::deque<std::vector<Task>> stages;
};

class Compression {
 public:
  Compression(Program& program, program::ClassId cls, Codecs* codecs, int32_t* tag)
      : program_(program),
        writer_(program, cls),
        views_(program, cls),
        parameters_(parameters_of_gradients(writer_.list())),
        codecs_(*codecs),
        tag_(*tag) {
    find_sums_of_several();
  }

  /// The sums of which one of the codecs takes a gradient that has a name, in the order of the
  /// list.
  std::vector<GradSum> sums(const std::vector<std::string>& codecs) const {
    std::vector<GradSum> sums;
    for (const Task& task : writer_.list().tasks) {
      if (!is_sum(task)) continue;
      GradSum sum = sum_of(task, codecs);
      if (!sum.parameters.empty()) {
        sums.push_back(std::move(sum));
      }
    }
    return sums;
  }

  void run() {
    // A sum of gradients becomes the stages of those that are encoded, and what is left of its
    // list. Sums go on by a stage whenever another one begins, and to their end before anybody
    // touches their buffers.
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
  /// Buffers in which products of different nodes of the model come together, on a rank or from
  /// ranks that run other lists, as the gradients of tied parameters, and where these are moved to:
  /// what ranks have of each are different parts of different sums, which no code stands for.
  void find_sums_of_several() {
    std::map<BufferId, std::string> made_by;
    for (const Task& task : writer_.list().tasks) {
      const program::Kind& kind = program_.kind(task);
      if (program::is_communication(kind)) {
        const bool meets_others =
            kind.communication == comm::summing().id && !is_within_class(task);
        for (size_t i = 0; i < task.out.size(); ++i) {
          const bool moved =
              i < task.in.size() && of_several_.contains(writer_.list().root(task.in[i]));
          if (meets_others || moved) {
            of_several_.insert(writer_.list().root(task.out[i]));
          }
        }
        continue;
      }
      const ops::Meaning meaning = ops::find(kind.op).meaning;
      for (const BufferId output : task.out) {
        const BufferId root = writer_.list().root(output);
        const std::string& first = made_by.try_emplace(root, kind.op).first->second;
        if (first != kind.op || meaning == ops::Meaning::sum) {
          of_several_.insert(root);
        }
      }
    }
  }

  GradSum sum_of(const Task& task, const std::vector<std::string>& codecs) const {
    GradSum sum;
    std::set<std::string>
        others;  // codecs with a route by which one of the operands goes otherwise
    for (size_t operand = 0; operand < task.in.size(); ++operand) {
      const std::string& name = parameter(task, operand);
      if (name.empty()) continue;
      bool taken = false;
      for (const std::string& codec : codecs) {
        if (!takes(codecs_.named(codec), task, operand)) continue;
        sum.taken_by[codec].push_back(name);
        taken = true;
        for (const Route route : {Route::at_once, Route::by_blocks}) {
          if (differs(codecs_.named(codec), route, task, operand)) {
            others.insert(codec + " " + to_string(route));
          }
        }
      }
      if (!taken) continue;
      sum.parameters.push_back(name);
      sum.bytes += program_.kind(task).in[operand].bytes();
    }
    for (const std::string& other : others) {
      sum.taken_by[other] = sum.taken_by.at(other.substr(0, other.find(' ')));
    }
    return sum;
  }

  /// True if the task waits for the sum, or uses its buffers, or what has memory in common with
  /// them.
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

  /// A sum of gradients of ranks that run one list. Between classes the order of what meets is that
  /// of all of them: such a sum stays what it is.
  bool is_sum(const Task& task) const {
    const program::Kind& kind = program_.kind(task);
    if (task.phase != program::Phase::grad || task.group == kNone || !task.deps.empty()) {
      return false;
    }
    const comm::Op& op = comm::op(kind.communication);
    if (&op != &comm::summing()) return false;
    return is_within_class(task);
  }
  bool is_within_class(const Task& task) const {
    const program::Group& group = program_.groups[task.group];
    return group.with == kNone && group.members.empty() && !program_.crosses_classes(group);
  }

  std::vector<size_t> coded_operands(const Task& task) {
    std::vector<size_t> coded;
    for (size_t operand = 0; operand < task.in.size() && is_sum(task); ++operand) {
      const auto takes_it = [&](const CodecOps& codec) { return takes(codec, task, operand); };
      codecs_.note(parameter(task, operand), takes_it);
      const CodecOps* codec = codecs_.of(parameter(task, operand));
      if (codec != nullptr && takes_it(*codec)) {
        coded.push_back(operand);
      }
    }
    return coded;
  }
  /// Whose gradient an operand of a sum is; empty: nobody's that has a name.
  const std::string& parameter(const Task& task, size_t operand) const {
    static const std::string unnamed;
    const auto found = parameters_.find(writer_.list().root(task.out[operand]));
    return found == parameters_.end() ? unnamed : found->second;
  }

  std::vector<Level> axes_of(const Task& task) const {
    std::vector<Level> levels;
    for (int32_t axis : program_.groups[task.group].axes) {
      levels.push_back({axis, program_.mesh_of(writer_.cls()).axes[axis].size, false});
    }
    return levels;
  }

  /// Whether codes of an operand go another way by this route than by least bytes.
  bool differs(const CodecOps& codec, Route route, const Task& task, size_t operand) const {
    const TensorType& type = program_.kind(task).in[operand];
    const std::vector<Level> axes = axes_of(task);
    const std::vector<Level> least = best_ways(codec, type, axes).levels;
    const std::vector<Level> other = best_ways(codec, type, axes, route).levels;
    return !std::equal(least.begin(), least.end(), other.begin(), other.end(),
                       [](const Level& a, const Level& b) { return a.by_blocks == b.by_blocks; });
  }

  /// Whether an operand can be encoded, and no more bytes are moved than by the sum itself.
  bool takes(const CodecOps& codec, const Task& task, size_t operand) const {
    if (of_several_.contains(writer_.list().root(task.in[operand]))) return false;
    const program::Kind& kind = program_.kind(task);
    const TensorType& type = kind.in[operand];
    if (!graph::is_floating(type.dtype) || type.routed() || !codec.takes(type)) return false;
    if (has_parts_of_rows(task.in[operand])) return false;
    const auto members = static_cast<double>(program_.size_of(program_.groups[task.group]));
    const comm::Op& op = comm::op(kind.communication);
    double plain = 0;
    for (const comm::Algorithm& way : op.algorithms(members, static_cast<double>(type.bytes()))) {
      plain = plain == 0 ? way.bytes : std::min(plain, way.bytes);
    }
    return best_ways(codec, type, axes_of(task)).bytes <= plain * (1 + 1e-9);
  }

  /// Rows are encoded whole: a codec's scale is of all their elements. A view lies as its base
  /// does.
  bool has_parts_of_rows(BufferId buffer) const {
    const RankClass& list = writer_.list();
    const graph::Layout& layout = list.buffers[list.root(buffer)].layout;
    return std::any_of(layout.on.begin(), layout.on.end(), [](graph::Placement placed) {
      return placed.is_split() && placed.dim() > 0;
    });
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
    sum.codec = codecs_.of(parameter(task, operand));
    sum.origin = place;
    sum.buffers = {task.in[operand], task.out[operand]};
    sum.stages.emplace_back();
    const Route route = codecs_.route_of(parameter(task, operand));
    add_up(task.in[operand], task.out[operand],
           best_ways(*sum.codec, type, axes_of(task), route).levels, task, &sum);
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

  /// The sum of what ranks have in `from` along the axes of all levels, in `to`.
  void add_up(BufferId from, BufferId to, std::vector<Level> levels, const Task& task, Begun* sum) {
    // Codes of hop k come from the rank k before, and their values lie in the slot of that rank:
    // slots are then added up in one order everywhere. By blocks the own codes are cut into those
    // for others, the sum of a block is encoded again, and all gather all blocks.
    const Level level = levels.front();
    levels.erase(levels.begin());
    const TensorType type = writer_.type(from);
    TensorType part = type;
    if (level.by_blocks) {
      part.dims[0] /= level.ranks;
    }
    const int64_t rows = part.dims[0];
    TensorType slots = part;
    slots.dims[0] *= level.ranks;
    const BufferId decoded = writer_.step(slots);
    const std::vector<BufferId> codes = encoded(from, task, sum);
    const auto send_part = [&](BufferId code, int32_t hop) {
      return level.by_blocks ? writer_.part(code, 0, rows, 0, moved(level, hop, rows)) : code;
    };
    std::vector<std::vector<BufferId>> come(static_cast<size_t>(level.ranks));
    for (BufferId code : codes) {
      come[0].push_back(send_part(code, 0));
    }
    for (int32_t hop = 1; hop < level.ranks; ++hop) {
      for (BufferId code : codes) {
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
      sum->stages.back().push_back(writer_.local(sum->codec->decode->name, CodecOps::back_to(type),
                                                 come[static_cast<size_t>(hop)], {slot}, task));
    }
    const BufferId total = level.by_blocks ? writer_.step(part) : to;
    for (int32_t rank = 1; rank < level.ranks; ++rank) {
      const BufferId before = rank == 1 ? writer_.part(decoded, 0, rows, 0) : total;
      const BufferId slot = writer_.part(decoded, 0, rows, rank * rows);
      sum->stages.back().push_back(
          writer_.local(ops::of(ops::Meaning::sum).name, {}, {before, slot}, {total}, task));
    }
    if (!levels.empty()) {
      add_up(total, total, std::move(levels), task, sum);
    }
    if (level.by_blocks) {
      gather(total, to, level, task, sum);
    }
  }

  /// What is finished of every block of rows along the axis, as codes, and all of them decoded.
  void gather(BufferId block, BufferId to, const Level& level, const Task& task, Begun* sum) {
    const GroupId group = program_.intern(program::group_over({level.axis}, writer_.list().role));
    std::vector<BufferId> all;
    for (BufferId code : encoded(block, task, sum)) {
      const std::vector<TensorType> mine{writer_.type(code)};
      const auto found = comm::resharding(mine[0], graph::Placement::split(0),
                                          graph::Placement::replicate(), level.ranks);
      HOCKET_CHECK(found, "rows of {} can't be gathered", to_string(mine[0]));
      all.push_back(writer_.step(found->out.back()));
      sum->stages.back().push_back(
          writer_.collective(found->op->id, found->attrs, group, {code}, {all.back()}, task));
    }
    sum->stages.emplace_back();
    sum->stages.back().push_back(writer_.local(
        sum->codec->decode->name, CodecOps::back_to(writer_.type(to)), all, {to}, task));
  }

  std::vector<BufferId> encoded(BufferId from, const Task& task, Begun* sum) {
    std::vector<BufferId> codes;
    for (const TensorType& code : sum->codec->codes(writer_.type(from))) {
      codes.push_back(writer_.step(code));
    }
    sum->stages.back().push_back(writer_.local(sum->codec->encode->name, {}, {from}, codes, task));
    return codes;
  }

  /// Where the block of the rank `by` further along the axis begins.
  program::TableId moved(const Level& level, int32_t by, int64_t rows) {
    program::Table table{.role = writer_.list().role, .axes = {level.axis}, .values = {}};
    for (int32_t rank = 0; rank < level.ranks; ++rank) {
      table.values.push_back((rank + by + level.ranks) % level.ranks * rows);
    }
    return program_.intern(std::move(table));
  }

  Program& program_;
  Writer writer_;
  const program::Views views_;                        ///< of the buffers that there were
  const std::map<BufferId, std::string> parameters_;  ///< by the root of their gradient
  Codecs& codecs_;
  int32_t& tag_;
  std::vector<Task> made_;
  std::set<BufferId> of_several_;
  std::vector<TaskId> renamed_;  ///< by place in the old list: that in the new one
  std::deque<Begun> begun_;
};

void run(Program& program, const Codecs::Options& options) {
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

std::map<BufferId, std::string> parameters_of_gradients(const RankClass& list) {
  // An optimizer makes a state of a parameter from its gradient, which is of the same shape.
  std::map<BufferId, std::string> parameters;
  for (const Task& task : list.tasks) {
    for (const BufferId output : task.out) {
      const std::string parameter = parameter_of(list.buffers[list.root(output)]);
      if (parameter.empty()) continue;
      if (list.buffers[list.root(output)].kind == program::BufferKind::output) {
        parameters[list.root(output)] = parameter;
      }
      for (const BufferId input : task.in) {
        const program::Buffer& read = list.buffers[list.root(input)];
        if (read.kind != program::BufferKind::step) continue;
        if (list.buffers[input].type == list.buffers[output].type) {
          parameters[list.root(input)] = parameter;
        }
      }
    }
  }
  return parameters;
}

namespace {

bool have_in_common(const GradSum& one, const GradSum& other) {
  return std::any_of(one.parameters.begin(), one.parameters.end(), [&](const std::string& name) {
    return std::find(other.parameters.begin(), other.parameters.end(), name) !=
           other.parameters.end();
  });
}
void add_names(const std::vector<std::string>& names, std::vector<std::string>* to) {
  for (const std::string& name : names) {
    if (std::find(to->begin(), to->end(), name) == to->end()) {
      to->push_back(name);
    }
  }
}
/// Joins the sum with those that have a parameter in common with it, at the place of the first.
void join_sum(GradSum sum, const std::function<int64_t(int64_t, int64_t)>& bytes,
              std::vector<GradSum>* sums) {
  const auto meets = [&](const GradSum& other) { return have_in_common(other, sum); };
  auto at = std::find_if(sums->begin(), sums->end(), meets);
  const auto place = at - sums->begin();
  while (at != sums->end()) {
    add_names(at->parameters, &sum.parameters);
    for (const auto& [codec, names] : at->taken_by) {
      add_names(names, &sum.taken_by[codec]);
    }
    sum.bytes = bytes(sum.bytes, at->bytes);
    at = std::find_if(sums->erase(at), sums->end(), meets);
  }
  sums->insert(sums->begin() + place, std::move(sum));
}

}  // namespace

std::vector<GradSum> grad_sums(Program program, const std::vector<std::string>& codecs) {
  Codecs all{Codecs::Options{}};
  int32_t tag = 0;
  std::vector<GradSum> sums;
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    std::vector<GradSum> here;
    for (GradSum& sum : Compression(program, cls, &all, &tag).sums(codecs)) {
      join_sum(std::move(sum), std::plus<>(), &here);
    }
    for (GradSum& sum : here) {
      join_sum(
          std::move(sum), [](int64_t one, int64_t other) { return std::max(one, other); }, &sums);
    }
  }
  return sums;
}

Pass pass_compress() {
  return program_pass("compress",
                      "sends sums of gradients as codes (plan.grad_codec, plan.grad_codec_of)",
                      false, {"grad_codec=identity", "grad_codec=int8"}, run);
}

}  // namespace hocket::passes
