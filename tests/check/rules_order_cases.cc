// SPDX-License-Identifier: Apache-2.0
// Implements: order_cases (rules_util.h), unmatched messages and collectives, deadlocks, unordered
// accesses.
#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

constexpr int32_t kTag = 900;  // unused by lowered programs

/// Appends a task that fills a new buffer with zeros; returns the buffer.
BufferId zeros(Edit& e, int64_t n, int32_t c = 0) {
  const graph::TensorType type = f32({n});
  const BufferId b = e.add_buffer(type, c);
  e.append(e.make("zero", {{"type", graph::to_string(type)}}, {}, {b}, c), c);
  return b;
}

/// Appends a message of zeros from class 0 to class 1.
void send_zeros(Edit& e, int64_t sent, int64_t expected) {
  e.append(e.make_message("send", zeros(e, sent), e.axis("pp"), 1, kTag));
  e.append(e.make_message("recv", e.add_buffer(f32({expected}), 1), e.axis("pp"), -1, kTag, 1), 1);
}

/// Appends an all_reduce of zeros over the stages to class c.
void reduce_zeros(Edit& e, int64_t n, int32_t c) {
  const BufferId b = zeros(e, n, c);
  e.append(e.make_collective("all_reduce", {}, {e.axis("pp")}, {b}, {b}, c), c);
}

std::vector<FaultCase> meeting_cases() {
  return {
      {"send-unmatched", "a message that nobody receives", two_stages,
       [](Edit& e) {
         const BufferId weight = e.named("model.layers.0.input_layernorm.weight");
         e.append(e.make_message("send", weight, e.axis("pp"), 1, kTag));
       }},
      {"recv-unmatched", "a message that nobody sends", two_stages,
       [](Edit& e) {
         e.append(e.make_message("recv", e.add_buffer(f32({4})), e.axis("pp"), 1, kTag));
       },
       "deadlock", "the receive waits forever; this rule names the missing message"},
      {"message-type", "a message of another size than is expected", two_stages,
       [](Edit& e) { send_zeros(e, 4, 8); }},
      {"tag-shared", "messages of one tag by two ways that lead a rank to one peer", four_ranks,
       [](Edit& e) {
         const BufferId from = zeros(e, 4);
         const program::TableId there = e.program.intern({0, {e.axis("edp")}, {2, -1, 1, -2}});
         const program::TableId back = e.program.intern({0, {e.axis("edp")}, {1, 2, -2, -1}});
         for (const bool by_table : {false, true}) {
           Task send = e.make_message("send", from, e.axis("edp"), by_table ? 0 : 2, kTag);
           Task receive =
               e.make_message("recv", e.add_like(from), e.axis("edp"), by_table ? 0 : -2, kTag);
           if (by_table) {
             send.peer_by = there;
             receive.peer_by = back;
           }
           e.append(send);
           e.append(receive);
         }
       }},
      {"collective-unmatched", "a collective that one stage leaves out", two_stages,
       [](Edit& e) { reduce_zeros(e, 4, 0); }, "deadlock",
       "the collective waits forever; this rule names the missing class"},
      {"collective-differs", "stages that reduce different sizes together", two_stages,
       [](Edit& e) {
         reduce_zeros(e, 4, 0);
         reduce_zeros(e, 8, 1);
       },
       "deadlock", "an incomplete match never ends in the abstract run"},
      {"deadlock", "two stages that both receive before they send", two_stages,
       [](Edit& e) {
         for (int32_t c = 0; c < 2; ++c) {
           const int32_t other = c == 0 ? 1 : -1;
           const BufferId b = e.add_buffer(f32({4}), c);
           e.append(e.make_message("recv", b, e.axis("pp"), other, kTag + 1 - c, c), c);
           e.append(e.make_message("send", b, e.axis("pp"), other, kTag + c, c), c);
         }
       }},
      {"deadlock", "two collectives whose members wait for each other", tied_stages,
       [](Edit& e) {
         // Stage 0 sends after the collective; stage 1 receives that before it takes part.
         reduce_zeros(e, 4, 0);
         e.append(e.make_message("send", zeros(e, 4), e.axis("pp"), 1, kTag));
         e.append(e.make_message("recv", e.add_buffer(f32({4}), 1), e.axis("pp"), -1, kTag, 1), 1);
         reduce_zeros(e, 4, 1);
       }},
  };
}

std::vector<FaultCase> race_cases() {
  return {
      {"race", "a read that does not wait for the write", two_ranks,
       [](Edit& e) { e.task("all_reduce").deps.clear(); }},
      {"race", "a write that does not wait for the read", one_rank,
       [](Edit& e) {
         // The copy reads the buffer to which the next micro-batch adds its gradients.
         const TaskId at = e.find("embedding_dw");
         const BufferId from = e.at(at).out[0], to = e.add_like(from, 0, Space::host);
         Task copy = e.make("copy", {}, {from}, {to});
         copy.lane = Lane::d2h;
         copy.deps = {at};
         e.insert(at + 1, std::move(copy), 0, false);
       }},
      {"race", "a buffer in memory whose buffer may still be read", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("embedding");
         const BufferId from = e.at(at).out[0], to = e.add_like(from, 0, Space::host);
         Task copy = e.make("copy", {}, {from}, {to});
         copy.lane = Lane::d2h;
         copy.deps = {at};
         e.insert(at + 1, std::move(copy), 0, false);
       }},
      {"race", "a buffer in a workspace that may still be in use", one_rank,
       [](Edit& e) {
         TaskId last = 0;
         for (TaskId i = 0; i < (e.cls().tasks.size()); ++i) {
           if (e.kind(e.at(i)).workspace > 0) {
             last = i;
           }
         }
         const BufferId to = e.add_buffer(f32({4}));
         e.buffer(to).offset = e.at(last).workspace;
         Task zero = e.make("zero", {{"type", std::string("f32[4]")}}, {}, {to});
         zero.lane = Lane::h2d;
         e.insert(last + 1, std::move(zero), 0, false);
       }},
      {"race", "a buffer in the workspace of the one task that may still run", one_rank,
       [](Edit& e) {
         // The writer waits for all tasks of the lane before that one.
         TaskId last = 0;
         for (TaskId i = 0; i < (e.cls().tasks.size()); ++i) {
           if (e.kind(e.at(i)).workspace > 0) {
             last = i;
           }
         }
         const BufferId to = e.add_buffer(f32({4}));
         e.buffer(to).offset = e.at(last).workspace;
         Task zero = e.make("zero", {{"type", std::string("f32[4]")}}, {}, {to});
         zero.lane = Lane::h2d;
         zero.deps = {last - 1};
         e.insert(last + 1, std::move(zero), 0, false);
       }},
      {"race", "a part of a buffer in memory that is still copied from", one_rank,
       [](Edit& e) {
         // The first part waits for the copy, the second part only for the writer of the old
         // buffer.
         const BufferId old = zeros(e, 64);
         const TaskId written = e.cls().tasks.size() - 1;
         Task copy = e.make("copy", {}, {old}, {e.add_like(old, 0, Space::host)});
         copy.lane = Lane::d2h;
         copy.deps = {written};
         e.insert(written + 1, std::move(copy), 0, false);
         const BufferId base = e.add_like(old);
         e.buffer(base).offset = e.buffer(old).offset;
         for (const int part : {0, 1}) {
           const BufferId half = e.add_rows(base, part * 32, 32);
           Task zero = e.make("zero", {{"type", std::string("f32[32]")}}, {}, {half});
           zero.lane = part == 0 ? Lane::compute : Lane::h2d;
           zero.deps = {part == 0 ? written + 1 : written};
           e.insert(written + 2 + part, std::move(zero), 0, false);
         }
       }},
      {"race", "a workspace over an operand", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("linear");
         e.at(at).workspace = e.buffer(e.at(at).in[0]).offset;
       },
       "overwritten", "a later reader of the operand finds its memory taken"},
      {"race", "a buffer in host memory that is still copied from", one_rank,
       [](Edit& e) {
         // A second copy to the host overwrites the first while that is copied back to the device.
         const TaskId at = e.find("embedding");
         const BufferId from = e.at(at).out[0];
         const BufferId first = e.add_like(from, 0, Space::host);
         const BufferId second = e.add_like(from, 0, Space::host);
         e.buffer(second).offset = e.buffer(first).offset;
         Task down = e.make("copy", {}, {from}, {first});
         down.lane = Lane::d2h;
         e.insert(at + 1, std::move(down));
         Task up = e.make("copy", {}, {first}, {e.add_like(from)});
         up.lane = Lane::h2d;
         up.deps = {at + 1};
         e.insert(at + 2, std::move(up), 0, false);
         Task again = e.make("copy", {}, {from}, {second});
         again.lane = Lane::d2h;
         again.deps = {at};
         e.insert(at + 3, std::move(again), 0, false);
       }},
      {"read-before-write", "a read of an unwritten buffer", one_rank,
       [](Edit& e) {
         const BufferId from = e.add_buffer(f32({4})), to = e.add_buffer(f32({4}));
         e.append(e.make("copy", {}, {from}, {to}));
       }},
  };
}

}  // namespace

std::vector<FaultCase> order_cases() {
  std::vector<FaultCase> list = meeting_cases();
  for (const FaultCase& row : race_cases()) {
    list.push_back(row);
  }
  return list;
}

}  // namespace hocket::check::test
