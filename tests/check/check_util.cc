// SPDX-License-Identifier: Apache-2.0
#include "tests/check/check_util.h"

#include <fmt/format.h>

#include "autodiff/autodiff.h"
#include "models/build.h"
#include "parallel/lowering/stamp.h"
#include "parallel/lowering/template.h"
#include "passes/pass.h"
#include "program/finalize.h"
#include "tests/schedule_util.h"

namespace hocket::check::test {

models::ModelConfig dense(int64_t layers, bool tied) {
  models::ModelConfig c;
  c.family = "llama";
  c.vocab_size = 32;
  c.hidden_size = 16;
  c.num_layers = layers;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 4;
  c.intermediate_size = 24;
  c.max_position = 64;
  c.tie_word_embeddings = tied;
  c.windows.assign(static_cast<size_t>(layers), 0);
  c.rope_layer.assign(static_cast<size_t>(layers), true);
  c.moe_layer.assign(static_cast<size_t>(layers), false);
  return c;
}

models::ModelConfig moe(int64_t layers) {
  models::ModelConfig c = dense(layers, false);
  c.family = "qwen3_moe";
  c.form.head_norm = "head";
  c.num_experts = 8;
  c.top_k = 2;
  c.moe_intermediate_size = 8;
  c.norm_topk_prob = true;
  c.router_aux_loss_coef = 0.01;
  for (int64_t i = 0; i < layers; ++i) {
    c.moe_layer[i] = i % 3 != 2;
  }
  return c;
}

Case make_case(const models::ModelConfig& config, const parallel::Plan& plan, int64_t sequence,
               int64_t bucket_bytes, Purpose purpose, const Rewrites& rewrites) {
  Case c;
  c.plan = plan;
  models::BuildOptions options;
  options.tokens = sequence * plan.micro_batch * plan.dp;
  options.sequence_length = sequence;
  options.balance_coef = config.router_aux_loss_coef;
  options.num_micro_batches = plan.num_micro_batches;
  using Mode = models::BuildOptions::Mode;
  if (purpose == Purpose::loss) {
    options.grad = false;
  }
  if (purpose == Purpose::logits) {
    options.mode = Mode::logits;
  }
  if (purpose == Purpose::generate) {
    options.mode = Mode::generate;
    options.generation = {.sequences = 2, .longest = 32, .pages = 4, .rows = 4};
  }
  c.graph = models::build(config, options);
  if (purpose == Purpose::train || purpose == Purpose::grads) {
    autodiff::differentiate(c.graph);
  }
  if (purpose == Purpose::train) {
    autodiff::append_optimizer(c.graph, {});
  }
  if (purpose == Purpose::grads) {
    autodiff::append_grad_outputs(c.graph);
  }
  graph::Graph rewritten = c.graph;
  const double bucket_mib = static_cast<double>(bucket_bytes) / (1 << 20);
  std::vector<std::string> settings{fmt::format("bucket_mib={}", bucket_mib)};
  settings.insert(settings.end(), rewrites.settings.begin(), rewrites.settings.end());
  passes::PassRunner runner(rewrites.passes, {}, passes::PassOptions(settings));
  runner.run(rewritten);
  parallel::Templates templates = parallel::make_templates(rewritten, plan);
  runner.run(templates);
  c.program = parallel::stamp(templates);
  runner.run(c.program);
  program::finalize(c.program);
  c.name =
      fmt::format("{} L{} tied={} pp={}x{} dp={} ep={} mb={} {} {}", config.family,
                  config.num_layers, config.tie_word_embeddings, plan.pp, plan.pp_chunks, plan.dp,
                  plan.ep, plan.num_micro_batches, plan.pp_schedule, fmt::join(settings, " "));
  return c;
}

void split_class(program::Program& program, int32_t cls, int32_t axis, int32_t at) {
  program::RankClass above = program.classes[cls];
  const program::Interval all = program.span(cls, axis);
  above.box[axis] = {at, all.end() - at};
  above.name += "x";
  program.classes[cls].box[axis] = {all.begin, at - all.begin};
  program.classes.push_back(std::move(above));
}

int split_classes(program::Program& program, std::mt19937_64& rng) {
  int splits = 0;
  for (int i = 0; i < 4; ++i) {
    const auto cls = static_cast<int32_t>(rng() % program.classes.size());
    const auto axis = static_cast<int32_t>(rng() % program.mesh_of(cls).axes.size());
    const program::Interval all = program.span(cls, axis);
    if (all.count < 2) continue;
    const auto at = all.begin + 1 + static_cast<int32_t>(rng() % (all.count - 1));
    split_class(program, cls, axis, at);
    ++splits;
  }
  return splits;
}

void twin_role(program::Program& program) {
  program.roles[0].name = "first";
  program.roles.push_back({"second", program.roles[0].mesh});
  const size_t classes = program.classes.size();
  for (size_t cls = 0; cls < classes; ++cls) {
    program::RankClass twin = program.classes[cls];
    twin.role = 1;
    const auto to_twin = [&program](program::TableId& by) {
      if (by == program::kNone) return;
      program::Table table = program.tables[by];
      table.role = 1;
      by = program.intern(std::move(table));
    };
    for (program::Buffer& buffer : twin.buffers) {
      to_twin(buffer.by);
    }
    for (program::Task& task : twin.tasks) {
      for (program::PieceOffset& begin : task.piece_offsets) {
        to_twin(begin.by);
      }
      if (task.group == program::kNone) continue;
      program::Group group = program.groups[task.group];
      group.role = 1;
      task.group = program.intern(group);
    }
    program.classes.push_back(std::move(twin));
  }
}

Case random_case(std::mt19937_64& rng) {
  auto pick = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  const bool experts = rng() % 2;
  const int64_t layers = pick(1, 4);
  const models::ModelConfig config = experts ? moe(layers) : dense(layers, rng() % 2);
  parallel::Plan plan;
  do {
    plan.pp = pick(1, layers);
    plan.dp = 1LL << pick(0, 3);
    plan.ep = experts ? 1LL << pick(0, 3) : 1;
  } while (plan.pp * plan.dp > 8 || plan.dp % plan.ep != 0);
  plan.num_micro_batches = pick(1, 5);
  plan.pp_schedule = rng() % 2 ? "1f1b" : "gpipe";
  if (const int64_t chunks = layers / plan.pp; chunks > 1 && rng() % 2) {
    plan.pp_schedule = "interleaved";
    plan.pp_chunks = pick(2, chunks);
    plan.num_micro_batches = plan.pp * pick(1, 2);
  }
  if (plan.pp > 1 && rng() % 2) {
    hocket::test::set_schedule(rng() % hocket::test::kSplitSchedules, layers, &plan);
  }
  Rewrites rewrites{.passes = {}, .settings = {}};
  for (const passes::Pass& pass : passes::all()) {
    rewrites.passes.push_back(pass.name);
    if (const size_t drawn = rng() % (pass.samples.size() + 1); drawn > 0) {
      rewrites.settings.push_back(pass.samples[drawn - 1]);
    }
  }
  return make_case(config, plan, 8, 25 << 20, Purpose::train, rewrites);
}

}  // namespace hocket::check::test
