// SPDX-License-Identifier: Apache-2.0
// New tasks and buffers of a class, for passes on programs.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace hocket::passes {

/// Adds buffers to a class of the program, and makes tasks on them; the caller places the tasks.
/// They inherit phase, stage and layer of the task that they replace.
class Writer {
 public:
  Writer(program::Program& program, program::ClassId cls) : program_(program), cls_(cls) {}

  program::Program& program() const { return program_; }
  program::ClassId cls() const { return cls_; }
  program::RankClass& list() const { return program_.classes[cls_]; }
  const graph::TensorType& type(program::BufferId buffer) const;
  /// A step buffer.
  program::BufferId step(const graph::TensorType& type,
                         program::Space space = program::Space::device);
  /// Indices [begin, begin + length) of a dim of a buffer that is no view, from where the table
  /// says on, if there is one.
  program::BufferId part(program::BufferId base, int32_t dim, int64_t length, int64_t begin,
                         program::TableId by = program::kNone);

  /// Returns an op on the device, with its costs. Throws Error if it does not accept the operands.
  program::Task local(const std::string& op, const graph::Attrs& attrs,
                      std::vector<program::BufferId> in, std::vector<program::BufferId> out,
                      const program::Task& stands_for) const;
  /// A collective, in the lane of the links that it takes.
  program::Task collective(comm::Id op, const graph::Attrs& attrs, program::GroupId group,
                           std::vector<program::BufferId> in, std::vector<program::BufferId> out,
                           const program::Task& stands_for) const;
  /// A copy of a buffer in the other memory, by the lane that goes there.
  program::Task copy_over(program::BufferId from, program::BufferId to,
                          const program::Task& stands_for) const;
  /// Returns an end of a message with this peer mapping.
  program::Task message(comm::Role role, program::BufferId buffer, const program::PeerMap& peer_map,
                        int32_t tag, const program::Task& stands_for) const;

 private:
  program::Task placed(program::Kind kind, std::vector<program::BufferId> in,
                       std::vector<program::BufferId> out, const program::Task& stands_for) const;
  std::vector<graph::TensorType> types(const std::vector<program::BufferId>& buffers) const;

  program::Program& program_;
  program::ClassId cls_;
};

/// Messages with tags from `first_tag` on are received no earlier than they need be: see
/// program::ReceiveThrottle.
void receive_in_order(program::Program& program, int32_t first_tag);

/// One more than the greatest tag of a message; 0 without messages.
int32_t next_tag(const program::Program& program);

}  // namespace hocket::passes
