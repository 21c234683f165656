// SPDX-License-Identifier: Apache-2.0
// Implements: structure_cases (rules_util.h), faults of ids, types, lanes, groups, peers, and
// places in the arena.
#include <algorithm>
#include <limits>

#include "collectives/comm_op.h"
#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

/// Adds an input buffer `name` of micro-batch 0 that no task reads.
program::Buffer& add_input(Edit& e, const std::string& name, graph::TensorType type, int32_t c) {
  program::Buffer b;
  b.type = std::move(type);
  b.kind = BufferKind::input;
  b.name = name;
  b.micro_batch = 0;
  e.cls(c).buffers.push_back(b);
  return e.cls(c).buffers.back();
}

/// Appends a copy of a parameter to a step buffer, and returns that buffer.
BufferId copy_of_norm(Edit& e) {
  const BufferId from = e.named("model.norm.weight"), to = e.add_like(from);
  e.append(e.make("copy", {}, {from}, {to}));
  return to;
}

/// Appends a send of a parameter, at offset 1 + `there` along edp by coordinate, and a recv, at
/// offset 1 + `back`.
void exchange_by_table(Edit& e, const std::vector<int64_t>& there,
                       const std::vector<int64_t>& back) {
  const BufferId from = copy_of_norm(e), to = e.add_like(from);
  Task send = e.make_message("send", from, e.axis("edp"), 1, 900);
  Task receive = e.make_message("recv", to, e.axis("edp"), 1, 900);
  send.peer_by = e.program.intern({0, {e.axis("edp")}, there});
  receive.peer_by = e.program.intern({0, {e.axis("edp")}, back});
  e.append(send);
  e.append(receive);
}

std::vector<FaultCase> id_cases() {
  return {
      {"ids-in-range", "no micro-batch", one_rank,
       [](Edit& e) { e.program.num_micro_batches = 0; }},
      {"ids-in-range", "an axis of no rank", one_rank,
       [](Edit& e) { e.program.roles[0].mesh.axes[1].size = 0; }},
      {"ids-in-range", "too many axes", one_rank,
       [](Edit& e) {
         e.program.roles[0].mesh.axes.resize(graph::kMaxAxes + 1, {"more", 1});
       }},
      {"ids-in-range", "too many axes in all roles together", one_rank,
       [](Edit& e) {
         for (const char* name : {"second", "third", "fourth"}) {
           program::Role role{name, {}};
           role.mesh.axes.resize(graph::kMaxAxes, {"more", 1});
           e.program.roles.push_back(role);
         }
       }},
      {.rule = "ids-in-range",
       .fault = "a kind that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.task("swiglu").kind = 1000; },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "a lane that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.task("swiglu").lane = static_cast<Lane>(program::kNumLanes); },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "an input that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.task("swiglu").in[0] = e.cls().buffers.size(); },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "an output that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.task("swiglu").out[0] = -1; },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "a dependency on a task that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.task("swiglu").deps.push_back(-3); },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "a group that does not exist",
       .start = two_ranks,
       .edit = [](Edit& e) { e.task("all_reduce").group = 77; },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "an axis of a peer that does not exist",
       .start = two_stages,
       .edit = [](Edit& e) { e.task("send").peer_axis = 9; },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "a table of a peer that does not exist",
       .start = two_stages,
       .edit = [](Edit& e) { e.task("send").peer_by = 0; },
       .only_refused = true},
      {.rule = "ids-in-range",
       .fault = "no role",
       .start = one_rank,
       .edit = [](Edit& e) { e.program.roles.clear(); },
       .only_refused = true},
      {.rule = "class-boxes",
       .fault = "a class of a role that does not exist",
       .start = one_rank,
       .edit = [](Edit& e) { e.cls().role = 1; },
       .only_refused = true},
      {.rule = "class-boxes",
       .fault = "a box beyond the mesh",
       .start = two_stages,
       .edit = [](Edit& e) { e.cls(1).box[0].count = 2; },
       .only_refused = true},
      {"class-boxes", "a class that has the ranks of another one", two_stages,
       [](Edit& e) { e.cls(1).box = e.cls(0).box; }},
      {.rule = "class-boxes",
       .fault = "ranks in no class",
       .start = two_stages,
       .edit = [](Edit& e) { e.program.classes.pop_back(); },
       .only_refused = true},
  };
}

/// Adds a state that no node uses, to the graph and to every rank.
void add_state(Edit& e, const graph::TensorType& type) {
  graph::Tensor tensor;
  tensor.name = "state";
  tensor.type = type;
  tensor.kind = graph::TensorKind::state;
  e.graph.add_tensor(tensor);
  program::Buffer b;
  b.type = type;
  b.kind = BufferKind::persistent;
  b.name = "state";
  e.cls().buffers.push_back(b);
}

std::vector<FaultCase> symbol_cases() {
  return {
      {"symbols-stay", "a state whose rows change their length", one_rank,
       [](Edit& e) {
         const graph::Dim n = e.graph.symbol({"n", 16, 8, 1});
         e.program.symbols = e.graph.symbols;
         add_state(e, {graph::DType::f32, {4, n}});
       }},
      {"symbol-table", "a symbol of another name", one_rank,
       [](Edit& e) {
         const graph::Dim n = e.graph.symbol({"n", 16, 8, 1});
         e.program.symbols = {{"m", 16, 8, 1}};
         add_state(e, {graph::DType::f32, {n, 4}});
       }},
      {"symbol-table", "a symbol that the graph does not have", one_rank,
       [](Edit& e) {
         e.program.symbols = {{"m", 16, 8, 1}};
       }},
  };
}

std::vector<FaultCase> kind_cases() {
  return {
      {"known-op", "an unknown op", one_rank,
       [](Edit& e) { e.rekind(e.task("swiglu"), [](Kind& k) { k.op = "swigloo"; }); }, "lane-fits",
       "an unknown op fits no lane, but that text would not name the fault"},
      {"types-sane", "a dimension of size 0", one_rank,
       [](Edit& e) {
         e.rekind(e.task("swiglu"), [](Kind& k) {
           k.in[0].dims[0] = 0;
           k.out[0].dims[0] = 0;
           Edit::set_cost(k);
         });
       },
       "operand-types",
       "a buffer of such a type is refused too; this rule keeps such types from the shape rules"},
      {.rule = "types-sane",
       .fault = "a size that overflows",
       .start = one_rank,
       .edit =
           [](Edit& e) {
             e.rekind(e.task("swiglu"), [](Kind& k) { k.in[0].dims[0] = int64_t{1} << 60; });
           },
       .only_refused = true},
      {.rule = "types-sane",
       .fault = "a symbol that the program does not have",
       .start = one_rank,
       .edit =
           [](Edit& e) {
             e.rekind(e.task("swiglu"), [](Kind& k) {
               graph::Dim& tokens = k.in[0].dims[0];
               tokens = graph::Dim::of(3, tokens, 1, 1);
             });
           },
       .only_refused = true},
      {.rule = "types-sane",
       .fault = "a row that cuts a block of its encoding",
       .start = one_rank,
       .edit =
           [](Edit& e) {
             e.rekind(e.task("swiglu"), [](Kind& k) {
               k.in[0].dtype = graph::DType::i8;
               k.in[0].encoding.block = static_cast<int32_t>(k.in[0].dims.back()) - 1;
             });
           },
       .only_refused = true},
      {"types-follow", "another output than the op gives", one_rank,
       [](Edit& e) {
         e.rekind(e.task("linear"), [](Kind& k) {
           k.out[0].dims.back() = k.out[0].dims.back() + 1;
           Edit::set_cost(k);
         });
       },
       "operand-types", "the buffer still has the right type; with both wrong, local-size"},
      {"types-follow", "size_exchange with an input too many", four_experts,
       [](Edit& e) {
         Task& t = e.task("size_exchange");
         e.rekind(t, [](Kind& k) {
           k.in.push_back(k.in[0]);
           Edit::set_cost(k);
         });
         t.in.push_back(t.in[0]);
       }},
      {"types-follow", "all_reduce that changes the shape", two_ranks,
       [](Edit& e) {
         const BufferId from = copy_of_norm(e), to = e.add_buffer(f32({4, 4}));
         e.append(e.make_collective("all_reduce", {}, {e.axis("edp")}, {from}, {to}));
       },
       "reduce-replicated", "the copied weight is whole already: a sum of it is refused anyhow"},
      {"types-follow", "all_gather along a dim that the tensor lacks", two_ranks,
       [](Edit& e) {
         const BufferId from = e.named("tokens", 0);
         const BufferId to = e.add_buffer({graph::DType::i32, {16}});
         e.append(
             e.make_collective("all_gather", {{"dim", int64_t{3}}}, {e.axis("edp")}, {from}, {to}));
       },
       "gather-layout", "nothing is split along a dim that does not exist"},
      {"types-follow", "all_to_all that goes nowhere", four_experts,
       [](Edit& e) {
         e.rekind(e.task("all_to_all"), [](Kind& k) { k.attrs.set("to", int64_t{1}); });
       },
       "local-size",
       "applies where the value is known; without a graph only this rule sees the fault"},
      {"types-follow", "a send of two buffers", two_stages,
       [](Edit& e) {
         Task& t = e.task("send");
         e.rekind(t, [](Kind& k) {
           k.in.push_back(k.in[0]);
           Edit::set_cost(k);
         });
         t.in.push_back(t.in[0]);
       },
       "message-type", "the receive has one"},
      {"workspace-declared", "a workspace that is slightly too small", one_rank,
       [](Edit& e) { e.rekind(e.task("linear"), [](Kind& k) { k.workspace -= 64; }); }},
      {"ranks-per-node", "two ranks on a node of one device", two_ranks,
       [](Edit& e) { e.options.devices_per_node = 1; }},
      {"cost-follows", "a kernel without work", one_rank,
       [](Edit& e) { e.rekind(e.task("linear"), [](Kind& k) { k.flops = 0; }); }},
      {"cost-follows", "a kernel that moves a few bytes too many", one_rank,
       [](Edit& e) { e.rekind(e.task("swiglu"), [](Kind& k) { k.bytes += 2; }); }},
      {"cost-follows", "a product of experts with other work than its rows", four_experts,
       [](Edit& e) { e.rekind(e.task("grouped_linear"), [](Kind& k) { k.flops /= 2; }); }},
      {"cost-follows", "a copy of routed rows that moves nothing", four_experts,
       [](Edit& e) {
         const TaskId product = e.find("grouped_linear");
         const BufferId from = e.at(product).out[0];
         Task copy = e.make("copy", {}, {from}, {e.add_like(from)});
         e.rekind(copy, [](Kind& k) { k.bytes = 1; });
         e.insert(product + 1, copy);
       }},
      {"cost-recomputed", "a collective of no bytes", two_ranks,
       [](Edit& e) { e.rekind(e.task("all_reduce"), [](Kind& k) { k.bytes = 0; }); }},
      {"cost-recomputed", "a collective with more memory than a transport's takes", two_ranks,
       [](Edit& e) {
         e.rekind(e.task("all_reduce"), [](Kind& k) { k.workspace = k.bytes + 64; });
       }},
      {"cost-recomputed", "a message with FLOPs", two_stages,
       [](Edit& e) { e.rekind(e.task("send"), [](Kind& k) { k.flops = 1; }); }},
      {.rule = "known-op",
       .fault = "a collective that runs as another op",
       .start = two_ranks,
       .edit =
           [](Edit& e) {
             Kind other = e.kind(e.task("all_reduce"));
             other.communication = comm::find("all_gather");
             e.program.kinds.push_back(std::move(other));
             e.task("all_reduce").kind = static_cast<int32_t>(e.program.kinds.size() - 1);
           },
       .only_refused = true},
      {"workspace-declared", "a negative workspace", one_rank,
       [](Edit& e) { e.rekind(e.task("linear"), [](Kind& k) { k.workspace = -64; }); }},
  };
}

std::vector<FaultCase> group_cases() {
  return {
      {"group-axes", "axes out of mesh order", four_experts,
       [](Edit& e) {
         auto& axes = e.program.groups[e.task("all_reduce").group].axes;
         std::reverse(axes.begin(), axes.end());
       }},
      {"group-axes", "members of a group along an axis that it lacks", two_ranks,
       [](Edit& e) {
         program::Group& group = e.program.groups[e.task("all_reduce").group];
         group.along = e.axis("pp");
         group.members = {0};
       },
       "classes-reduce-only", "members leave out ranks; only this rule names the missing axis"},
      {.rule = "group-axes",
       .fault = "a role that does not exist",
       .start = two_ranks,
       .edit = [](Edit& e) { e.program.groups[e.task("all_reduce").group].role = 1; },
       .only_refused = true},
      {.rule = "group-axes",
       .fault = "an axis of members, without any",
       .start = two_ranks,
       .edit = [](Edit& e) { e.program.groups[e.task("all_reduce").group].along = 1; },
       .only_refused = true},
      {.rule = "group-axes",
       .fault = "an axis that does not exist",
       .start = four_experts,  // with groups behind this one
       .edit = [](Edit& e) { e.program.groups[e.task("all_reduce").group].axes = {9}; },
       .only_refused = true},
      {.rule = "group-axes",
       .fault = "a stage that does not exist",
       .start = tied_stages,
       .edit =
           [](Edit& e) {
             e.program.groups[e.task("all_reduce").group].members = {0, 2};
           },
       .only_refused = true},
      {"group-once", "one group under two ids", two_ranks,
       [](Edit& e) {
         Task& t = e.task("all_reduce", -1);
         e.program.groups.push_back(e.program.groups[t.group]);
         t.group = static_cast<int32_t>(e.program.groups.size() - 1);
       }},
      {"group-fits", "a kernel with a group", two_ranks,
       [](Edit& e) { e.task("swiglu").group = e.task("all_reduce").group; }},
      {.rule = "group-fits",
       .fault = "a collective without a group",
       .start = two_ranks,
       .edit = [](Edit& e) { e.task("all_reduce").group = kNone; },
       .only_refused = true},
      {"group-fits", "a collective of a stage that is no member", three_stages,
       [](Edit& e) {
         const BufferId b = e.named("model.norm.weight", kNone, 2), to = e.add_like(b, 2);
         e.append(e.make("copy", {}, {b}, {to}, 2), 2);
         Task t = e.make_collective("all_reduce", {}, {e.axis("pp")}, {to}, {to}, 2);
         t.group = e.program.intern(program::Group{0, {e.axis("pp")}, e.axis("pp"), {0, 1}});
         e.append(std::move(t), 2);
       },
       "classes-reduce-only",
       "a collective without all its ranks sums nothing; this rule names the class that is no "
       "member"},
  };
}

std::vector<FaultCase> buffer_cases() {
  return {
      {"buffer-type", "a ragged buffer that expects more than its bound", four_experts,
       [](Edit& e) {
         for (program::Buffer& b : e.cls().buffers) {
           if (b.expected_bytes == kNone) continue;
           b.expected_bytes = b.type.bytes() + 64;
           return;
         }
       }},
      {"buffer-type", "a buffer of a negative size", one_rank,
       [](Edit& e) { e.buffer(e.add_buffer(f32({4}))).type.dims[0] = -4; }},
      {"buffer-type", "a buffer of more dims than pieces have", one_rank,
       [](Edit& e) {
         e.add_buffer(f32({1, 1, 1, 1, 1, 1, 1}));
       }},
      {"arena-bounds", "an offset that is no multiple of 64", one_rank,
       [](Edit& e) {
         e.buffer(copy_of_norm(e)).offset += 32;
         e.cls().arena_bytes += 64;
       }},
      {"arena-bounds", "the end beyond the arena", one_rank,
       [](Edit& e) {
         copy_of_norm(e);
         e.cls().arena_bytes -= 64;
       }},
      {"arena-bounds", "a named buffer in the arena", one_rank,
       [](Edit& e) { e.buffer(e.named("tokens", 0)).offset = 0; }},
      {"host-contract", "an input without a name", one_rank,
       [](Edit& e) {
         add_input(e, "", {graph::DType::i32, {8}}, 0);
       },
       "named-tensor",
       "a graph has no tensor of that name; without a graph only this rule sees the fault"},
      {"host-contract", "an input that is partial", two_stages_two_ranks,
       [](Edit& e) {
         add_input(e, "tokens", {graph::DType::i32, {16}}, 1)
             .layout.set(e.axis("edp"), Placement::partial());
       }},
      {"host-contract", "an input split along a dim that it lacks", two_stages_two_ranks,
       [](Edit& e) {
         add_input(e, "tokens", {graph::DType::i32, {8}}, 1)
             .layout.set(e.axis("pp"), Placement::split(1));
       },
       "named-tensor", "such a layout gives the tensor no local type; this rule names the fault"},
      {"host-contract", "a bucket whose slots are not in order", one_rank,
       [](Edit& e) {
         program::Buffer& bucket = add_input(e, "bucket", {graph::DType::f32, {32}}, 0);
         bucket.kind = BufferKind::persistent;
         bucket.micro_batch = kNone;
         bucket.slots = {{"model.norm.weight", {}, 16}, {"model.norm.weight", {}, 0}};
       },
       "named-tensor",
       "ends of slots are known with their tensors; without a graph only this rule sees the fault"},
      {"host-contract", "a bucket of inputs", one_rank,
       [](Edit& e) {
         add_input(e, "bucket", {graph::DType::i32, {16}}, 0).slots = {{"tokens", {}, 0},
                                                                       {"targets", {}, 8}};
       }},
      {"host-contract", "a step buffer with slots", one_rank,
       [](Edit& e) {
         e.buffer(e.task("linear").out[0]).slots = {{"model.norm.weight", {}, 0}};
       }},
      {"named-once", "an input in two buffers", one_rank,
       [](Edit& e) {
         add_input(e, "tokens", {graph::DType::i32, {8}}, 0);
       }},
      {"workspace-planned", "a workspace without a place", one_rank,
       [](Edit& e) { e.task("linear").workspace = kNone; }},
      {"workspace-planned", "a workspace at no multiple of 64", one_rank,
       [](Edit& e) {
         e.task("linear").workspace += 32;
         e.cls().arena_bytes += 64;
       }},
      {"workspace-planned", "a workspace that ends beyond the arena", one_rank,
       [](Edit& e) { e.task("linear").workspace = e.cls().arena_bytes - 64; }},
      {"buffer-planned", "a buffer that is used but has no place", one_rank,
       [](Edit& e) {
         // Takes the first buffer of the arena: with the rule off, "no offset" reads as -1, and no
         // other buffer is alive there.
         for (program::Buffer& b : e.cls().buffers) {
           if (b.kind == BufferKind::step && b.offset == 0) {
             b.offset = kNone;
             return;
           }
         }
       }},
  };
}

std::vector<FaultCase> task_cases() {
  return {
      {"operand-types", "a buffer of another shape and the same size", one_rank,
       [](Edit& e) {
         auto& dims = e.buffer(e.task("swiglu").out[0]).type.dims;
         std::swap(dims[0], dims[1]);
       }},
      {.rule = "operand-types",
       .fault = "an input too many",
       .start = one_rank,
       .edit =
           [](Edit& e) {
             Task& t = e.task("swiglu");
             t.in.push_back(t.in[0]);
           },
       .only_refused = true},
      {"deps-earlier", "a task before its dependency", two_ranks,
       [](Edit& e) {
         const TaskId reduce = e.find("all_reduce");
         const TaskId before = e.at(reduce).deps.back();
         e.move(reduce, before);
       }},
      {"lane-fits", "kernels in the host's lane", one_rank,
       [](Edit& e) {
         for (Task& t : e.cls().tasks) {
           t.lane = Lane::host;
         }
       },
       "space-fits", "it refuses the memory of their operands"},
      {"space-fits", "a kernel that reads the host's memory", one_rank,
       [](Edit& e) {
         e.buffer(e.task("swiglu").in[0]).space = Space::host;
         e.replan();
       }},
      {"space-fits", "a kernel that writes the host's memory", one_rank,
       [](Edit& e) {
         e.buffer(e.task("swiglu").out[0]).space = Space::host;
         e.replan();
       }},
      {"space-fits", "a copy to the host that stays on the device", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("swiglu");
         const BufferId from = e.at(at).out[0];
         Task copy = e.make("copy", {}, {from}, {e.add_like(from)});
         copy.lane = Lane::d2h;
         e.insert(at + 1, std::move(copy));
       }},
      {"space-fits", "a copy from the host of a device buffer", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("swiglu");
         const BufferId from = e.at(at).out[0];
         Task copy = e.make("copy", {}, {from}, {e.add_like(from)});
         copy.lane = Lane::h2d;
         e.insert(at + 1, std::move(copy));
       }},
      {"lane-fits", "collectives in the kernels' lane", two_ranks,
       [](Edit& e) {
         for (Task& t : e.cls().tasks) {
           t.lane = Lane::compute;
         }
       },
       "lane-recomputed", "it refuses communication only; this rule refuses kernels too"},
      {"lane-recomputed", "a collective in the lane of the network, inside a node", two_ranks,
       [](Edit& e) {
         e.task("all_reduce", -1).lane = Lane::inter;
         e.replan();
       }},
      {"lane-recomputed", "a receive in the lane of the network, inside a node", two_stages,
       [](Edit& e) {
         e.task("recv", -1).lane = Lane::inter_rx;
         e.replan();
       }},
      {"lane-recomputed", "ranks on different nodes in the lane of one node", two_ranks,
       [](Edit& e) { e.program.ranks_per_node = 1; }},
      {"peer-exists", "a kernel with a peer", two_stages,
       [](Edit& e) { e.task("swiglu").peer_axis = e.axis("pp"); }},
      {"peer-exists", "a kernel with an offset", one_rank,
       [](Edit& e) { e.task("swiglu").peer = 1; }},
      {"peer-exists", "a collective with a tag", two_ranks,
       [](Edit& e) { e.task("all_reduce").tag = 7; }},
      {.rule = "peer-exists",
       .fault = "a send without a peer",
       .start = two_stages,
       .edit = [](Edit& e) { e.task("send").peer_axis = kNone; },
       .only_refused = true},
      {"peer-exists", "a message to the rank itself", two_ranks,
       [](Edit& e) {
         const BufferId b = copy_of_norm(e), to = e.add_like(b);
         e.append(e.make_message("send", b, e.axis("edp"), 0, 900));
         e.append(e.make_message("recv", to, e.axis("edp"), 0, 900));
       }},
      {"peer-exists", "a message beyond the end of an axis", two_ranks,
       [](Edit& e) {
         const BufferId b = copy_of_norm(e), to = e.add_like(b);
         e.append(e.make_message("send", b, e.axis("edp"), 2, 900));
         e.append(e.make_message("recv", to, e.axis("edp"), -2, 900));
       }},
      {"peer-exists", "a kernel with a table of peers", two_ranks,
       [](Edit& e) {
         e.task("swiglu").peer_by = e.program.intern({0, {e.axis("edp")}, {1, -1}});
       }},
      {"peer-exists", "a message to the rank itself by a table", two_ranks,
       [](Edit& e) {
         exchange_by_table(e, {-1, -1}, {-1, -1});
       }},
      {"peer-exists", "a message beyond the end of an axis by a table", two_ranks,
       [](Edit& e) {
         exchange_by_table(e, {2, 0}, {2, 0});
       }},
      {"peer-exists", "a table by which two ranks send to one", four_ranks,
       [](Edit& e) {
         exchange_by_table(e, {0, 0, 0, 1}, {0, -2, 0, -2});
       },
       "send-unmatched",
       "a receive names one sender, so no receive has the inverse way of such a send"},
      {"begins-named", "a begin of a letter that is not positional", one_rank,
       [](Edit& e) {
         e.task("rms_norm").piece_offsets = {{'a', 8, kNone}};
       }},
      {"begins-named", "two begins of one letter", one_rank,
       [](Edit& e) {
         e.task("attention").piece_offsets = {{'t', 0, kNone}, {'t', 8, kNone}};
       }},
      {"begins-named", "a begin so large that sums overflow", one_rank,
       [](Edit& e) {
         e.task("embedding_dw").piece_offsets = {{'v', std::numeric_limits<int64_t>::max(), kNone}};
       },
       "begin-fits", "the vocabulary begins elsewhere; this rule refuses before any addition"},
      {"begins-named", "a begin of a message", two_stages,
       [](Edit& e) {
         e.task("send").piece_offsets = {{'a', 0, kNone}};
       }},
      {"accumulate-allowed", "an accumulation that the kernel does not support", one_rank,
       [](Edit& e) {
         const BufferId b = e.task("swiglu").out[0];
         const graph::Attrs type{{"type", graph::to_string(e.buffer(b).type)}};
         e.insert(e.find("swiglu"), e.make("zero", type, {}, {b}));
         e.task("swiglu").accumulate.add(0);
       }},
      {"in-place-declared", "an output over an input that is still read", forward_only,
       [](Edit& e) {
         const Task& add = e.task("add");
         const BufferId from = add.out[0], to = add.in[1];
         for (Task& t : e.cls().tasks) {
           for (auto* list : {&t.in, &t.out}) {
             std::replace(list->begin(), list->end(), from, to);
           }
         }
         e.replan();
       }},
      {"in-place-declared", "two outputs to one buffer", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("attention_bwd");
         Task twice = e.at(at);
         const BufferId dq = e.add_like(twice.out[0]), dkv = e.add_like(twice.out[1]);
         twice.out = {dq, dkv, dkv};
         e.insert(at + 1, std::move(twice));
       }},
      {"in-place-declared", "an output over a part of its input", one_rank,
       [](Edit& e) {
         const graph::TensorType type{graph::DType::f32, {12}};
         const BufferId all = e.add_buffer(type);
         e.append(e.make("zero", {{"type", graph::to_string(type)}}, {}, {all}));
         e.append(e.make("copy", {}, {e.add_rows(all, 0, 8)}, {e.add_rows(all, 4, 8)}));
       }},
      {"in-place-declared", "two outputs to parts of one buffer that overlap", one_rank,
       [](Edit& e) {
         const TaskId at = e.find("attention_bwd");
         Task twice = e.at(at);
         const int64_t rows = e.buffer(twice.out[1]).type.dims[0];
         graph::TensorType both = e.buffer(twice.out[1]).type;
         both.dims[0] = rows * 3 / 2;
         const BufferId base = e.add_buffer(both);
         twice.out = {e.add_like(twice.out[0]), e.add_rows(base, 0, rows),
                      e.add_rows(base, rows / 2, rows)};
         e.insert(at + 1, std::move(twice));
       }},
      {"in-place-declared", "an update into another buffer", one_rank,
       [](Edit& e) {
         const BufferId other = e.add_like(e.task("adamw").out[0]);
         e.task("adamw").out[0] = other;
       },
       "final-value",
       "the parameter keeps its old value; without a graph only this rule sees the fault"},
      {"inputs-read-only", "a task that writes an input", one_rank,
       [](Edit& e) {
         e.append(e.make("copy", {}, {e.named("positions", 0)}, {e.named("targets", 0)}));
       }},
  };
}

}  // namespace

std::vector<FaultCase> structure_cases() {
  std::vector<FaultCase> list;
  for (const auto& part :
       {id_cases(), symbol_cases(), kind_cases(), group_cases(), buffer_cases(), task_cases()}) {
    list.insert(list.end(), part.begin(), part.end());
  }
  return list;
}

}  // namespace hocket::check::test
