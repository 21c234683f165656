// SPDX-License-Identifier: Apache-2.0
// Given programs must have the plan's mesh and nodes. Memory of c10d's collectives is planned. Plan
// keys without effect are reported.
#include "run/compile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "check/check.h"
#include "program/memory.h"
#include "program/program.h"
#include "run/ineffective_keys.h"

namespace hocket::engine {
namespace {

std::string refusal(const Run& run, const std::string& text) {
  try {
    compile_program_text(run, program::parse_program(text));
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(CompileProgramText, RefusesOtherRanksAndNodesThanThePlans) {
  const std::string model =
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 2, seq_len: 4}\n";
  const engine::Run run = parse_run(model + "plan: {dp: 2, ranks_per_node: 1}\n", "test", {});
  const std::string text = program::print(compile(run).program);
  EXPECT_EQ(refusal(run, text), "");

  const engine::Run one_rank = parse_run(model, "test", {});
  EXPECT_NE(refusal(one_rank, text).find("another mesh of ranks"), std::string::npos);

  const std::string line = "ranks_per_node 1\n";
  const size_t at = text.find(line);
  ASSERT_NE(at, text.npos);
  std::string moved = text;
  moved.erase(at, line.size());
  EXPECT_NE(refusal(run, moved).find("0 ranks per node"), std::string::npos);

  // The error shows found and expected values in the syntax of the text.
  const std::string said = refusal(one_rank, text);
  EXPECT_NE(said.find("got mesh=\"pp:1 edp:2 ep:1\""), std::string::npos) << said;
  EXPECT_NE(said.find("expected mesh=\"pp:1 edp:1 ep:1\""), std::string::npos) << said;
  std::string roles = text;
  roles.insert(roles.find("\n", roles.find("role 0 ")), "\nrole 1 more mesh=\"ep:1\"");
  roles.insert(roles.rfind("end"), "class more role=1\n");
  EXPECT_NE(refusal(run, roles).find("2 roles; training runs programs of one"), std::string::npos)
      << refusal(run, roles);
  std::string twice = text;
  twice.replace(twice.find("micro_batches 1"), 15, "micro_batches 7");
  EXPECT_NE(refusal(run, twice).find("has 7 micro-batches, the configuration in it 1"),
            std::string::npos)
      << refusal(run, twice);
}

TEST(Compile, MemoryOfTheTransportsCollectivesIsPlanned) {
  const std::string text =
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 2, seq_len: 4}\nplan: {dp: 2}\n";
  const Compiled own = compile(parse_run(text, "test", {}));
  const engine::Run run = parse_run(text, "test", {"plan.collectives=c10d"});
  const Compiled c10d = compile(run);
  EXPECT_TRUE(check::check(c10d.program, c10d.reference).ok());
  EXPECT_NE(program::program_hash(c10d.program), program::program_hash(own.program));

  // With plan.ranks: nccl, collectives are c10d's unless plan.collectives asks for our own.
  EXPECT_TRUE(parse_run(text, "test", {"plan.ranks=nccl"}).c10d);
  EXPECT_FALSE(parse_run(text, "test", {"plan.ranks=gloo"}).c10d);
  EXPECT_FALSE(parse_run(text, "test", {"plan.ranks=nccl", "plan.collectives=own"}).c10d);

  // Copies of the operands of the largest collective: all gradients are one bucket.
  int64_t largest = 0;
  for (const program::Kind& kind : own.program.kinds) {
    if (program::is_communication(kind)) {
      largest = std::max(largest, kind.bytes);
    }
  }
  const auto messages = [](const Compiled& made) {
    return program::memory_of(made.program)[0].messages;
  };
  EXPECT_EQ(messages(own), 0);

  // Our own between two processes: in each phase, half of the operand is in flight twice and
  // received once. Threads read each other's memory and send nothing.
  const Compiled processes = compile(parse_run(text, "test", {"plan.ranks=gloo"}));
  EXPECT_TRUE(check::check(processes.program, processes.reference).ok());
  EXPECT_GE(messages(processes), largest);
  EXPECT_LE(messages(processes), 2 * largest);
  EXPECT_GE(messages(c10d), largest);
  EXPECT_LE(messages(c10d), 2 * largest);

  // The same for a program read from text.
  const Compiled from_text =
      compile_program_text(run, program::parse_program(program::print(own.program)));
  EXPECT_EQ(messages(from_text), messages(c10d));
}

/// The shortest sample is a prompt of one token and an end token. It takes one place of a sequence.
TEST(AnswersPerSequence, HasRoomForTheShortestSamples) {
  const auto most = [](const std::string& loss) {
    return answers_per_sequence(parse_run(
        "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
        "num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4, intermediate_size: 8}}\n"
        "train: {seq_len: 6}\nobjective: rl\nrl: {rewards: [{type: exact}], loss: " +
            loss + "}\n",
        "test", {}));
  };
  EXPECT_EQ(most("gspo"), 6);
  EXPECT_EQ(most("ppo"), 0);
}

/// Every key has no effect under one plan here, and has one under the plan beside it.
TEST(IneffectiveKeys, AreReported) {
  const auto warned = [](const std::string& plan, const std::vector<std::string>& set = {}) {
    const engine::Run run = parse_run(
        "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
        "num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4, intermediate_size: 8}}\n"
        "train: {global_batch: 4, seq_len: 4}\nplan: {" +
            plan + "}\n",
        "test", set);
    std::string text;
    for (const std::string& line : ineffective_keys(run)) {
      text += line.substr(0, line.find(':')) + "; ";
    }
    return text;
  };
  const auto warned_of_rl = [&](const std::string& rl) {
    return warned("dp: 1}\nobjective: rl\nrl: {rewards: [{type: exact}], " + rl,
                  {"train.global_batch=8"});
  };
  EXPECT_EQ(warned_of_rl("kl_in: reward, clip_high: 0.3"),
            "train.global_batch has no effect; rl.kl_in has no effect; ");
  EXPECT_EQ(warned_of_rl("old_logprobs: trainer, correction: {type: tis}"),
            "train.global_batch has no effect; rl.correction.type has no effect; ");
  EXPECT_EQ(warned_of_rl("old_logprobs: trainer, correction: {type: tis}, top_k: 5"),
            "train.global_batch has no effect; ");
  EXPECT_EQ(warned_of_rl("kl_coef: 0.1, kl_in: reward, reference: here"),
            "train.global_batch has no effect; ");
  EXPECT_EQ(
      warned_of_rl("loss: reinforce, clip_high: 0.3, critic: {clip: 0.3}, routing_replay: true"),
      "train.global_batch has no effect; rl.critic.clip has no effect; rl.clip_high has no effect; "
      "rl.routing_replay has no "
      "effect; ");
  // The configuration of a program gives every key, with its default.
  EXPECT_EQ(warned_of_rl("kl_in: loss, clip_high: 0.2"), "train.global_batch has no effect; ");
  EXPECT_EQ(warned("dp: 1}\nobjective: rl\nrl: {rewards: [{type: exact}], kl_in: loss"), "");
  EXPECT_EQ(warned("dp: 1}\nobjective: sft\nrl: {epochs: 2, samples_per_prompt: 8}\n"
                   "preference: {beta: 0.2"),
            "rl.epochs has no effect; preference.beta has no effect; ");
  EXPECT_EQ(warned_of_rl("epochs: 2}\npreference: {desirable_weight: 2, answers_per_sequence: 4"),
            "preference.desirable_weight has no effect; "
            "preference.answers_per_sequence has no effect; train.global_batch has no effect; ");
  EXPECT_EQ(warned_of_rl("epochs: 2}\ndata: {valid_files: [held_out.jsonl]"),
            "train.global_batch has no effect; data.valid_files has no effect; ");
  EXPECT_EQ(warned("dp: 1}\nobjective: dpo\npreference: {beta: 0.2"), "");
  const std::string preference = "\npreference: {loss_type: [ipo], desirable_weight: 2";
  EXPECT_EQ(warned("dp: 1}\nobjective: dpo" + preference),
            "preference.desirable_weight has no effect; ");
  EXPECT_EQ(warned("dp: 1}\nobjective: kto" + preference), "preference.loss_type has no effect; ");
  const std::string data = "\ndata: {files: [a], valid_files: [b], train_on: last, packing: false";
  EXPECT_EQ(warned("dp: 1}\nobjective: sft" + data),
            "data.files has no effect; data.valid_files has no effect; ");
  EXPECT_EQ(warned("dp: 1}" + data), "data.train_on has no effect; data.packing has no effect; ");
  EXPECT_EQ(warned("dp: 1}\noptimizer: {momentum: 0.5, ns_steps: 3"),
            "optimizer.momentum has no effect; optimizer.ns_steps has no effect; ");
  EXPECT_EQ(warned("dp: 1}\noptimizer: {name: muon, momentum: 0.5, ns_steps: 3"), "");
  EXPECT_EQ(warned(""), "");
  EXPECT_EQ(warned("dp: 4, shard: {group: 2}"), "plan.shard.group has no effect; ");
  EXPECT_EQ(warned("dp: 4, shard: {group: 2, grads: group}"), "");
  EXPECT_EQ(warned("dp: 2, dp_samples: [3, 1], micro_batch: 2"),
            "plan.micro_batch has no effect; ");
  EXPECT_EQ(warned("dp: 2, dp_samples: [3, 1]"), "");
  EXPECT_EQ(warned("dp: 3, micro_batch: 2"), "");
  EXPECT_EQ(warned("shard: {params: all}"), "plan.shard has no effect; ");
  EXPECT_EQ(warned("dp: 2, shard: {reshard_after_forward: false}"),
            "plan.shard.reshard_after_forward has no effect; ");
  EXPECT_EQ(warned("dp: 2, shard: {params: all, reshard_after_forward: false}"), "");
  const std::string kept = "reshard_after_forward: false, reshard_after_backward: false";
  EXPECT_EQ(warned("dp: 2, shard: {" + kept + "}"),
            "plan.shard.reshard_after_forward has no effect; "
            "plan.shard.reshard_after_backward has no effect; ");
  EXPECT_EQ(warned("dp: 2, shard: {params: all, " + kept + "}"), "");
  EXPECT_EQ(warned("sequence_parallel: true"), "plan.sequence_parallel has no effect; ");
  EXPECT_EQ(warned("tp: 2, sequence_parallel: true, comm_tiles: 2"), "");
  EXPECT_EQ(warned("moe_chunks: 2, moe_chunks_backward: 3, comm_tiles: 2"),
            "plan.moe_chunks has no effect; plan.moe_chunks_backward has no effect; "
            "plan.comm_tiles has no effect; ");
  EXPECT_EQ(warned("cp_comm_type: p2p, cp_order: zigzag"),
            "plan.cp_comm_type has no effect; plan.cp_order has no effect; ");
  EXPECT_EQ(warned("cp: 2, cp_order: zigzag"), "plan.cp_order has no effect; ");
  EXPECT_EQ(warned("cp: 2, cp_comm_type: p2p, cp_order: zigzag"), "");
  EXPECT_EQ(warned("all_reduce: ring, all_gather: hierarchical"),
            "plan.all_reduce has no effect; plan.all_gather has no effect; ");
  EXPECT_EQ(warned("dp: 4, all_reduce: hierarchical, ranks_per_node: 1, reduce_scatter: ring"),
            "plan.all_reduce goes around rings; ");
  EXPECT_EQ(warned("dp: 4, all_reduce: ho_ring, ranks_per_node: 2"), "");
}

}  // namespace
}  // namespace hocket::engine
