// SPDX-License-Identifier: Apache-2.0
#include "program/moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "program/buffer_contents.h"

namespace hocket::program {

namespace {

/// bytes. Smaller tensors are not followed: a norm or a coefficient leads to the updates of many
/// parameters.
constexpr int64_t kScalarBytes = 8;

/// Tasks of a class by the buffers that they read.
class Readers {
 public:
  Readers(const Program& program, const RankClass& cls)
      : cls_(cls), belongs_(program.parameters_of_tensors()), of_(cls.buffers.size()) {
    for (size_t i = 0; i < cls.tasks.size(); ++i) {
      if (cls.tasks[i].phase < Phase::grad) continue;
      for (const BufferId input : cls.tasks[i].in) {
        of_[cls.root(input)].push_back(i);
      }
    }
  }

  /// Returns the names of the parameters that the task reads, writes, or updates through its
  /// outputs' readers.
  std::vector<std::string> parameters_of(size_t task) const {
    // Its own buffers may be named. A gradient has no name: it is followed to the readers at the
    // end of the step, and through their outputs, up to the first with a parameter.
    std::vector<std::string> names = named(cls_.tasks[task]);
    if (!names.empty() || cls_.tasks[task].phase < Phase::grad) return names;
    std::vector<size_t> now = {task};
    while (names.empty() && !now.empty()) {
      std::vector<size_t> next;
      for (const size_t from : now) {
        for (const BufferId made : cls_.tasks[from].out) {
          if (cls_.buffers[made].type.bytes() <= kScalarBytes) continue;
          for (const size_t reader : of_[cls_.root(made)]) {
            if (reader > from) {
              next.push_back(reader);
            }
          }
        }
      }
      std::sort(next.begin(), next.end());
      next.erase(std::unique(next.begin(), next.end()), next.end());
      for (const size_t reader : next) {
        for (std::string& name : named(cls_.tasks[reader])) {
          names.push_back(std::move(name));
        }
      }
      now = std::move(next);
    }
    return names;
  }

 private:
  /// The parameters among the named buffers of a task.
  std::vector<std::string> named(const Task& task) const {
    std::vector<std::string> names;
    for (const std::vector<BufferId>* list : {&task.in, &task.out}) {
      for (const BufferId id : *list) {
        const Buffer& buffer = cls_.buffers[cls_.root(id)];
        const bool output = buffer.kind == BufferKind::output;
        if (!output && buffer.kind != BufferKind::persistent) continue;
        for (const std::string& name : tensors_of(buffer.name, buffer.slots)) {
          // Parameters, and gradients that the host reads; states of the optimizer do not travel.
          const auto parameter = belongs_.find(name);
          const bool gradient = parameter != belongs_.end();
          if (gradient != output) continue;
          names.push_back(gradient ? parameter->second : name);
        }
      }
    }
    return names;
  }

  const RankClass& cls_;
  const std::map<std::string, std::string> belongs_;  ///< Program::parameters_of_tensors
  std::vector<std::vector<size_t>> of_;               ///< by buffer, at the end of a step
};

}  // namespace

std::vector<std::string> parameters_moved(const Program& program, ClassId cls) {
  const RankClass& rank_class = program.classes[cls];
  const Readers readers(program, rank_class);
  std::vector<std::string> moved(rank_class.tasks.size());
  for (size_t i = 0; i < moved.size(); ++i) {
    if (!is_communication(program.kind(rank_class.tasks[i]))) continue;
    std::vector<std::string> names = readers.parameters_of(i);
    if (names.empty()) continue;
    const std::string first = names[0];
    std::sort(names.begin(), names.end());
    const auto others = std::unique(names.begin(), names.end()) - names.begin() - 1;
    moved[i] = others > 0 ? fmt::format("{} and {} more", first, others) : first;
  }
  return moved;
}

}  // namespace hocket::program
