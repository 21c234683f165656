// SPDX-License-Identifier: Apache-2.0
#include "plan_util.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "comm/process_world.h"
#include "engine/params.h"
#include "graph/elements.h"
#include "graph/names.h"
#include "program/buffer_contents.h"
#include "tests/plans/plan_family_util.h"
#include "tests/schedule_util.h"

namespace hocket::test {

namespace {

int64_t pick(Rng& rng, std::initializer_list<int64_t> from) {
  return from.begin()[rng.below(from.size())];
}

/// Keys of plan.shard: any of the combinations that are legal, in groups that there may be.
std::string random_groups(Rng& rng, int64_t dp, int64_t ep, int64_t cp) {
  const char* const among[] = {"none", "group", "all"};
  const size_t params = rng.below(3), grads = rng.below(3);
  const size_t least = std::max(params, grads);
  const size_t optimizer = least + rng.below(3 - least);
  int64_t part = pick(rng, {1, 2, 3});
  if (dp / ep % part != 0) {
    part = 1;
  }
  const int64_t group = cp > 1 && rng.below(3) == 0 ? cp : cp * ep * part;
  return fmt::format("params: {}, grads: {}, optimizer: {}, group: {}", among[params], among[grads],
                     among[optimizer], group);
}

/// Gives a key of the model another value.
void set_key(std::string* text, const std::string& key, int64_t value) {
  const size_t at = text->find(key + ": ") + key.size() + 2;
  text->replace(at, text->find_first_of(",}", at) - at, std::to_string(value));
}

/// Over how many ranks the experts of a plan are split: as they are, or over ranks of cp and tp
/// too.
struct Folded {
  int64_t ep = 1, etp = 1, over_dp = 1;
};
Folded fold(uint64_t seed, parallel::Plan plan, int64_t experts) {
  if (experts == 0) return {};
  Rng rng(seed + 3000017);
  if (plan.tp > 1 && rng.below(2) == 0) {
    plan.etp = plan.tp == 4 && rng.below(2) == 0 ? 2 : plan.tp;
  }
  const int64_t before = plan.ep;
  for (int64_t more : {plan.cp * plan.tp, plan.tp, plan.cp, int64_t{2}}) {
    parallel::Plan wider = plan;
    wider.ep = before * more;
    const bool fits = experts % wider.ep == 0 && wider.dp % wider.ep_over().dp == 0;
    if (fits && rng.below(3) > 0) {
      plan = wider;
      break;
    }
  }
  if (plan.dp % plan.ep_over().dp != 0) {
    plan.ep = 1;
  }
  return {plan.ep, plan.etp, plan.ep_over().dp};
}

/// Returns keys of passes: communication beside compute, its pieces, and its algorithm. `nodes`:
/// keys for nodes, and for collectives that go inside them first; "" for none.
std::string random_passes(uint64_t seed, bool moe, int64_t chunks_backward,
                          const std::string& nodes) {
  Rng rng(seed + 8000009);
  std::string keys;
  const auto sometimes = [&](const char* key, std::initializer_list<const char*> values) {
    const char* const value = values.begin()[rng.below(values.size())];
    if (rng.below(3) == 0) {
      keys += fmt::format(", {}: {}", key, value);
    }
  };
  sometimes("comm_tiles", {"2", "3", "5"});
  sometimes("grad_codec", {"identity"});
  sometimes("delay_wgrad_compute", {"true"});
  sometimes("overlap_p2p_comm", {"false"});
  sometimes("overlap_grad_reduce", {"false"});
  sometimes("overlap_param_gather", {"false"});
  if (nodes.find("all_gather") == nodes.npos) {
    sometimes("reduce_scatter", {"ring", "halving_doubling"});
    sometimes("all_gather", {"ring", "halving_doubling"});
  } else {
    sometimes("ho_ring_pieces", {"1", "2", "3"});
  }
  sometimes("grad_codec_of", {"['* identity host']"});
  if (moe && chunks_backward > 0) {
    keys += fmt::format(", moe_chunks_backward: {}", chunks_backward);
  }
  return keys;
}

/// Returns a section `adapter` for one case in six, else "".
std::string random_adapter(uint64_t seed, bool experts) {
  Rng rng(seed + 14000029);
  if (rng.below(6) != 0) return "";
  // Modules of attention have other names in other families.
  const char* const targets[] = {"all-linear", "'regex:.*(attn|attention)[.](?!.*norm).*'"};
  std::string keys = fmt::format("r: {}, alpha: {}, targets: [{}]", pick(rng, {1, 2, 3, 4}),
                                 pick(rng, {1, 5}), targets[rng.below(2)]);
  if (experts && rng.below(3) > 0) {
    keys += ", target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]";
  } else if (rng.below(2) == 0) {
    keys += ", dropout: 0.2";
  }
  return "adapter: {type: lora, " + keys + "}\n";
}

}  // namespace

Case random_case(uint64_t seed, int max_ranks, const std::string& dtype, bool any_keys) {
  Rng rng(seed);
  Case c;
  c.seed = seed;
  const bool moe = rng.below(3) > 0;
  const int64_t layers = 1 + static_cast<int64_t>(rng.below(4));
  const int64_t head_dim = pick(rng, {2, 4, 6}), kv = pick(rng, {1, 2}), group = pick(rng, {1, 3});
  int64_t pp = 0, dp = 0, ep = 0, experts = 0;
  do {
    pp = 1 + static_cast<int64_t>(rng.below(static_cast<uint64_t>(std::min<int64_t>(layers, 4))));
    dp = pick(rng, {1, 2, 3, 4, 6, 8});
    ep = moe ? pick(rng, {1, 2, 3, 4}) : 1;
    experts = pick(rng, {4, 6, 8, 12});
  } while (pp * dp > max_ranks || dp % ep != 0 || experts % ep != 0);
  Rng axes(seed + 2000003);
  if (axes.below(2) == 0) {
    dp = ep;  // room for other axes
  }
  const int64_t micro = 1 + static_cast<int64_t>(rng.below(2));
  int64_t num_micro = 1 + static_cast<int64_t>(rng.below(4));
  std::string layers_per_stage;
  if (rng.below(2) && pp > 1) {
    // An uneven split, stages without blocks allowed.
    std::vector<int64_t> share(static_cast<size_t>(pp), 0);
    for (int64_t l = 0; l < layers; ++l) {
      ++share[rng.below(static_cast<uint64_t>(pp))];
    }
    for (int64_t s : share) {
      layers_per_stage += (layers_per_stage.empty() ? "" : ", ") + std::to_string(s);
    }
  }
  // Some plans have several stages per rank, where the layers and micro-batches allow it.
  Rng more(seed + 1000003);
  std::string schedule = rng.below(4) ? "1f1b" : "gpipe";
  int64_t chunks = 1;
  if (layers / pp > 1 && num_micro % std::max<int64_t>(1, num_micro / pp) == 0 &&
      more.below(3) > 0) {
    chunks = 2 + static_cast<int64_t>(more.below(static_cast<uint64_t>(layers / pp - 1)));
    schedule = "interleaved";
    layers_per_stage.clear();
  }
  // And some split and overlap their passes.
  Rng split(seed + 4000037);
  const bool overlaps = Rng(seed + 12000017).below(8) == 0;
  if (any_keys && pp > 1 && (split.below(3) > 0 || overlaps)) {
    parallel::Plan plan;
    plan.pp = pp;
    plan.num_micro_batches = num_micro;
    set_schedule(overlaps ? kInterleavedOverlap : split.below(kSplitSchedules), layers, &plan);
    schedule = plan.pp_schedule;
    chunks = plan.pp_chunks;
    num_micro = plan.num_micro_batches;
    layers_per_stage = fmt::format("{}", fmt::join(plan.pp_layers, ", "));
  }
  const char* recompute[] = {"none", "selective", "full"};
  const bool parallel_blocks = Rng(seed + 11000027).below(3) == 0;
  Rng windows(seed + 13000027);  // and some have a sliding window
  const int64_t window = windows.below(3) == 0 ? pick(windows, {2, 3, 5}) : 0;
  const char* const sequential = window > 0 ? "mistral" : "llama";
  const char* const dense = parallel_blocks ? "parallel_llama" : sequential;
  c.text = fmt::format(
      "model:\n  dtype: {}\n  config: {{model_type: {}, vocab_size: {}, hidden_size: {}, "
      "num_hidden_layers: {}, num_attention_heads: {}, num_key_value_heads: {}, head_dim: {}, "
      "intermediate_size: {}, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: {}, "
      "max_position_embeddings: 64, hidden_act: silu",
      dtype, moe ? "qwen3_moe" : dense, pick(rng, {17, 23, 32}), pick(rng, {8, 10, 12}), layers,
      kv * group, kv, head_dim, pick(rng, {5, 9, 12}), rng.below(2) ? "true" : "false");
  if (window > 0) {
    c.text += fmt::format(", use_sliding_window: true, sliding_window: {}", window);
  }
  if (moe) {
    c.text += fmt::format(
        ", num_experts: {}, num_experts_per_tok: {}, moe_intermediate_size: {}, norm_topk_prob: "
        "{}, "
        "router_aux_loss_coef: 0.05, decoder_sparse_step: {}, mlp_only_layers: []",
        experts, pick(rng, {1, 2, 3}), pick(rng, {3, 7}), rng.below(2) ? "true" : "false",
        pick(rng, {1, 1, 2}));
  }
  double bucket_mib = rng.below(2) ? 25.0 : 0.0005;
  const char* const repeated = recompute[rng.below(3)];
  const int64_t sequence = pick(rng, {3, 7, 8});
  // Some send their tokens to the experts in pieces, in any number that divides them.
  const int64_t pieces = moe && more.below(3) == 0 ? 1 + static_cast<int64_t>(more.below(4)) : 1;
  // Tokens, and the vocabulary, over more ranks: any number that is left and divides them.
  const int64_t room = std::max<int64_t>(max_ranks / (pp * dp), 1);
  Rng uneven(seed + 6000023);
  const int64_t tokens = sequence * micro;
  const bool any_tokens = uneven.below(2) == 0;  // ranks need not divide them
  int64_t cp = pick(axes, {1, 2, 3, 4, 7, 8});
  if (cp > room || (any_tokens ? cp > tokens : tokens % cp != 0)) {
    cp = axes.below(2) == 0 && room > 1 && sequence * micro % 2 == 0 ? 2 : 1;
  }
  int64_t tp = pick(axes, {1, 2, 2, 3, 4});
  if (tp > room / cp) {
    tp = room / cp > 1 ? 2 : 1;
  }
  if (tp > 1 && uneven.below(2) == 0) {
    set_key(&c.text, "vocab_size", 24);
  }
  // Some have a large vocabulary: its gradient takes longer to reduce than its tokens to gather.
  if (Rng words(seed + 5000011); words.below(3) == 0) {
    set_key(&c.text, "vocab_size", tp > 1 && uneven.below(2) == 0 ? 4800 : 4093);
  }
  if (const size_t at = c.text.find("num_experts_per_tok: 1"); at != c.text.npos && cp * tp > 1) {
    // One expert's weight, normalized, is 1: the router's gradient is the rounding error of 0.
    c.text.replace(at, 22, "num_experts_per_tok: 2");
  }
  std::string layouts;
  if (tp > 1 && axes.below(3) == 0) {
    layouts = "'*_proj.weight B'";
  }
  // Keys of other ranks are gathered, or come around a ring of them.
  const bool ring = cp > 1 && axes.below(2) == 0;
  // And some split the tokens between products over the ranks of tp.
  const bool may_split = tokens % (cp * tp) == 0 || (any_tokens && tokens >= cp * tp);
  const bool sequence_parallel = tp > 1 && may_split && axes.below(4) > 0;
  parallel::Plan plan;
  plan.dp = dp;
  plan.ep = ep;
  plan.cp = cp;
  plan.tp = tp;
  plan.sequence_parallel = sequence_parallel;
  plan.ring = ring;
  const Folded folded = fold(seed, plan, moe ? experts : 0);
  ep = folded.ep;
  const int64_t heads = kv == 2 && tp == 4 && uneven.below(2) == 0 ? 4 : kv * group;
  set_key(&c.text, "num_attention_heads", heads);
  if (folded.etp > 1) {
    const int64_t more_wide = static_cast<int64_t>(uneven.below(2));
    set_key(&c.text, "moe_intermediate_size", 2 * folded.etp + more_wide);
  }
  const int64_t token_ranks = cp * (sequence_parallel ? tp / folded.etp : 1);
  const int64_t moe_chunks = sequence * micro % (token_ranks * pieces) == 0 ? pieces : 1;
  // And back in other pieces.
  Rng passes(seed + 9000011);
  int64_t chunks_backward = moe && passes.below(3) == 0 ? pick(passes, {1, 2, 3, 4}) : 0;
  if (!any_keys || (chunks_backward > 0 && tokens % (token_ranks * chunks_backward) != 0)) {
    chunks_backward = 0;
  }
  // In zigzag order, where they come around a ring.
  const int64_t head_ranks = heads >= tp ? tp : std::gcd(heads, tp);
  const bool exchange = cp > 1 && !ring && heads % (head_ranks * cp) == 0;
  const bool even_parts = tokens % (2 * cp) == 0;
  const bool zigzag =
      ring && (even_parts ? axes.below(2) == 0 : tokens >= 2 * cp && uneven.below(2) == 0);
  // In some, data-parallel ranks have different numbers of sequences.
  std::vector<int64_t> samples;
  if (dp > 1 && !zigzag && uneven.below(2) == 0) {
    const bool any =
        moe_chunks == 1 && chunks_backward <= 1 && sequence >= cp * (sequence_parallel ? tp : 1);
    for (int64_t rank = 0; rank < dp; ++rank) {
      samples.push_back((1 + static_cast<int64_t>(uneven.below(3))) * (any ? 1 : micro));
    }
  }
  // Ranks of cp may have different parts of them, too.
  std::vector<int64_t> shares;
  const int64_t least = sequence_parallel ? tp : 1;  // tokens
  Rng parts(seed + 7000003);
  if (cp > 1 && (ring || samples.empty()) && !zigzag && moe_chunks == 1 && chunks_backward <= 1 &&
      parts.below(3) == 0) {
    for (int64_t rank = 0; rank < cp; ++rank) {
      shares.push_back(1 + static_cast<int64_t>(parts.below(3)));
    }
    for (const int64_t number : samples.empty() ? std::vector<int64_t>{micro} : samples) {
      const std::vector<int64_t> by_rank = parallel::shares_of(number * sequence, shares);
      if (!shares.empty() && *std::min_element(by_rank.begin(), by_rank.end()) < least) {
        shares.clear();
      }
    }
  }
  // Some shard the state that data-parallel ranks would replicate.
  const char* const shards[] = {"", "params: all", "optimizer: all", "grads: all",
                                "params: all, grads: all"};
  std::string shard = dp > 1 ? shards[more.below(5)] : "";
  Rng groups(seed + 3000017);
  if (dp * cp > 1 && groups.below(2) == 0) {
    shard = random_groups(groups, dp, folded.over_dp, cp);
  }
  if (!shard.empty() && groups.below(3) == 0) {
    shard += ", reshard_after_forward: false";
    if (Rng kept(seed + 10000019); kept.below(2) == 0) {
      shard += ", reshard_after_backward: false";
    }
  }
  // Rows that go to their experts over nodes.
  const int64_t ep_inner = folded.over_dp % 2 == 0 && more.below(2) == 0 ? 2 : 1;
  plan.ep = folded.ep;
  plan.etp = folded.etp;
  const parallel::Plan::Over over = plan.ep_over();
  if (ep_inner > 1 || (over.dp > 1) + (over.cp > 1) + (over.tp > 1) > 1) {
    chunks_backward = 0;  // in several steps
  }
  // And some write their sums as messages.
  const char* const reduced[] = {"native", "ring", "halving_doubling"};
  const char* all_reduce = dp * cp * tp > 1 ? reduced[more.below(std::size(reduced))] : "native";
  // On nodes of their ranks, and there inside first, perhaps with all that is scattered or
  // gathered.
  std::string nodes = "ranks_per_node: 0";
  if (dp * cp * tp > 1 && groups.below(3) == 0) {
    all_reduce = groups.below(2) == 0 ? "hierarchical" : "ho_ring";
    // All ranks of a class are placed alike on nodes.
    const int64_t near = cp * tp * pick(groups, {1, ep_inner, folded.over_dp});
    const bool pairs = near == cp * tp * folded.over_dp && shard.find("group: ") == shard.npos &&
                       dp / folded.over_dp % 2 == 0;
    nodes = fmt::format("ranks_per_node: {}", pairs ? 2 * near : near);
    if (groups.below(2) == 0) {
      nodes += fmt::format(", reduce_scatter: {}, all_gather: {}", all_reduce, all_reduce);
    }
  }
  if (any_keys && passes.below(4) == 0) {
    bucket_mib = passes.below(2) == 0 ? 0 : 0.004;
  }
  if (any_keys && !shard.empty() && passes.below(4) == 0) {
    shard += ", least_kib: 0.5";
  }
  // Tokens that go to experts on ranks of tp are split there, whatever made them.
  if (any_keys && tp > 1 && over.tp == 1 && layouts.empty() && passes.below(4) == 0) {
    const char* const pins[] = {"*embed_tokens.weight B", "*q_proj.weight B", "*o_proj.weight B",
                                "*embed_tokens.weight tp:S1"};
    layouts = fmt::format("'{}'", pins[passes.below(moe ? 3 : 4)]);
    // With one head and experts that are whole, nothing else is split over tp: that is refused.
    if (moe && heads == 1 && layouts == "'*embed_tokens.weight B'") {
      layouts.clear();
    }
  }
  if (any_keys && !shard.empty() && layouts.empty() && passes.below(3) == 0) {
    layouts = passes.below(2) == 0 ? "'*embed_tokens.weight edp:B'" : "'*norm.weight B'";
    layouts = passes.below(2) == 0 ? "'grad.*_proj.weight B'" : layouts;
  }
  const std::string keys =
      any_keys ? random_passes(seed, moe, chunks_backward, nodes) : std::string();
  // Some drop a part of their layers' outputs.
  Rng drops(seed + 5000011);
  const char* const optimizer = Rng(seed + 15000017).below(3) == 0 ? "sgd" : "adamw";
  const double dropout = drops.below(3) == 0 ? 0.25 : 0;
  give_family(seed, moe, &c.text);
  c.text += fmt::format(
      "}}\ntrain: {{seq_len: {}, global_batch: {}, warmup_steps: 0, lr: 0.01, seed: {}, dropout: "
      "{}}}\noptimizer: {{name: {}}}\n"
      "plan: {{pp: {}, dp: {}, ep: {}, etp: {}, ep_inner: {}, cp: {}, tp: {}, sequence_parallel: "
      "{}, layouts: "
      "[{}], micro_batch: {}, dp_samples: [{}], cp_shares: [{}], pp_layers: [{}], pp_schedule: {}, "
      "pp_chunks: {}, "
      "recompute: {}, threads_per_rank: 1, timeout_s: 60, bucket_mib: {}, moe_chunks: {}, "
      "shard: {{{}}}, cp_comm_type: {}, cp_order: {}, all_reduce: {}, {}{}}}\n",
      sequence,
      (samples.empty() ? dp * micro : std::accumulate(samples.begin(), samples.end(), int64_t{0})) *
          num_micro,
      seed % 1000, dropout, optimizer, pp, dp, ep, folded.etp, ep_inner, cp, tp, sequence_parallel,
      layouts, micro, fmt::join(samples, ", "), fmt::join(shares, ", "), layers_per_stage, schedule,
      chunks, repeated, bucket_mib, moe_chunks, shard,
      ring       ? "p2p"
      : exchange ? "a2a"
                 : "all_gather",
      zigzag ? "zigzag" : "contiguous", all_reduce, nodes, keys);
  if (c.text.find("'grad.") == c.text.npos) {  // gradients that frozen weights lack
    c.text += random_adapter(seed, moe && c.text.find("decoder_sparse_step: 1") != c.text.npos);
  }
  if (Rng objectives(seed + 19000013); any_keys && objectives.below(5) == 0) {
    const char* const objective = objectives.below(3) > 0 ? "dpo" : "kto";
    const char* const losses[] = {"sigmoid", "sigmoid_norm", "ipo", "hinge"};
    c.text += fmt::format("objective: {}\npreference: {{loss_type: {}, answers_per_sequence: 2}}\n",
                          objective, losses[objectives.below(4)]);
  } else if (any_keys && objectives.below(4) == 0) {
    c.text += "objective: sft\n";
  }
  const std::string kind =
      (moe ? "moe" : "dense") + (window > 0 ? fmt::format(" window {}", window) : "");
  c.name =
      fmt::format("seed {} {} {}{} pp{}{} {} dp{}{} ep{}{}{}{}{} x{}{}{} {}", seed, kind, optimizer,
                  dropout > 0 ? " dropout" : "", pp, chunks > 1 ? fmt::format("x{}", chunks) : "",
                  schedule, dp, samples.empty() ? "" : fmt::format("[{}]", fmt::join(samples, ",")),
                  ep, ep_inner > 1 ? "/2" : "",
                  cp > 1 ? fmt::format(" cp{}{}", cp,
                                       zigzag     ? "z"
                                       : ring     ? "r"
                                       : exchange ? "x"
                                                  : "") +
                               (shares.empty() ? "" : fmt::format("[{}]", fmt::join(shares, ",")))
                         : "",
                  tp > 1 ? fmt::format(" tp{}{}{}", tp, sequence_parallel ? "s" : "",
                                       folded.etp > 1 ? fmt::format(" etp{}", folded.etp) : "")
                         : "",
                  layouts.empty() ? "" : " whole", num_micro,
                  moe_chunks > 1 ? fmt::format(" chunks{}", moe_chunks) : "",
                  shard.empty() ? "" : " shard " + shard, all_reduce);
  return c;
}

namespace {

std::vector<double> as_doubles(const std::vector<std::byte>& raw, graph::DType dtype) {
  std::vector<double> v(raw.size() / static_cast<size_t>(size_of(dtype)));
  graph::read_numbers(dtype, raw.data(), std::span(v));
  return v;
}

/// Changes parameters of this type at random by up to two units in the last place.
template <class T>
void change_last_bits(graph::DType dtype, const engine::Compiled& compiled, uint64_t seed,
                      const runtime::Store& store) {
  Rng rng(seed);
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    if (tensor.kind != graph::TensorKind::param || tensor.type.dtype != dtype) continue;
    const std::vector<std::byte> raw = engine::gather(tensor, compiled.program, store);
    std::vector<T> values(raw.size() / sizeof(T));
    std::memcpy(values.data(), raw.data(), raw.size());
    for (T& value : values) {
      value *= 1 + std::numeric_limits<T>::epsilon() * static_cast<T>(rng.between(-1, 1));
    }
    engine::scatter(tensor, compiled.program, store, [&](int64_t begin, int64_t count, void* to) {
      std::copy_n(values.begin() + begin, count, static_cast<T*>(to));
    });
  }
}

/// Fills the initial parameters of a case, with its changes of last bits.
void initialise(const engine::Compiled& compiled, const Case& c, const runtime::Store& store) {
  engine::initialise(compiled.reference, compiled.program, c.seed, store);
  if (c.last_bits != 0) {
    change_last_bits<double>(graph::DType::f64, compiled, c.last_bits, store);
    change_last_bits<float>(graph::DType::f32, compiled, c.last_bits, store);
  }
}

std::string given_name(const std::string& ids) { return "given." + ids; }

/// Compiles a program. As the case asks, the choices of routers become outputs, or inputs that are
/// placed on ranks like tokens.
engine::Compiled compile(const engine::ProgramSpec& spec, const Case& c) {
  if (!c.keep_routes && !c.routes) return engine::compile(spec);
  graph::Graph graph = spec.graph({});
  std::vector<graph::Node> nodes;
  const auto add = [&](const graph::Node& node) {
    for (const graph::TensorId id : node.out) {
      graph.tensors[static_cast<size_t>(id)].producer = static_cast<graph::NodeId>(nodes.size());
    }
    nodes.push_back(node);
  };
  for (graph::Node node : graph.nodes) {
    if (node.op == "router" && c.routes) {
      // Inputs are whole on ranks of tp; each rank of a copy may have its own tokens.
      graph::Tensor taken = graph.tensor(node.out[1]);
      const std::string name = given_name(taken.name);
      taken.name = "taken." + taken.name;
      graph::Node copy;
      copy.op = "copy";
      copy.layer = node.layer;
      copy.in = {graph.input(name, taken.type)};
      copy.out = {graph.add_tensor(taken)};
      add(copy);
      node.attrs.set("given", int64_t{1});
      node.in.insert(node.in.begin() + 1, copy.out[0]);  // before that of padding
    } else if (node.op == "router") {
      graph.outputs.push_back(node.out[1]);
    }
    add(node);
  }
  graph.nodes = std::move(nodes);
  engine::Lowering lowering;
  lowering.passes = spec.lowering.passes;
  lowering.pass_options = spec.lowering.pass_options;
  return engine::compile(std::move(graph), spec.plan, lowering);
}

/// Throws Error if the check refuses the program.
void expect_good(const engine::Compiled& compiled) {
  const check::Verdict verdict = check::check(compiled.program, compiled.reference);
  if (!verdict.ok()) fail("check", "{}", to_text(verdict));
}

/// Feeds the choices given to the routers: per router, one micro-batch after the other.
void add_routes(const Routes& routes, engine::FeedMap* feeds) {
  std::map<std::string, std::vector<int32_t>> by_router;
  for (const auto& [key, chosen] : routes) {
    std::vector<int32_t>& all = by_router[key.first];
    all.insert(all.end(), chosen.begin(), chosen.end());
  }
  for (auto& [router, chosen] : by_router) {
    feeds->keep(given_name(router), std::move(chosen));
  }
}

/// Returns the routers' choices in the step that ran.
Routes routes_of(const engine::Session& session) {
  Routes routes;
  for (const graph::Node& node : session.graph().nodes) {
    if (node.op != "router") continue;
    const std::string& name = session.graph().tensor(node.out[1]).name;
    for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
      routes[{name, m}] = session.collect_as<int32_t>(name, m);
    }
  }
  return routes;
}

/// Returns all ranks of a program as threads, or the rank of this process.
runtime::LocalRanks ranks_of(const Case& c, bool single, int32_t world,
                             const runtime::RankOptions& options) {
  if (single || !c.connection) return {world, kernels::cpu_backend(), options};
  return {std::make_shared<comm::ProcessWorld>(c.connection),
          {c.connection->index()},
          kernels::cpu_backend(),
          options};
}

/// Runner of the steps of a case. It feeds them and keeps their routes.
class Steps {
 public:
  Steps(const Case& c, const engine::Run& run) : case_(c), run_(run) {}
  void one(int step, engine::Session& session) {
    const engine::Batch batch = random_batch(session.compiled(), run_, step, case_.seed);
    engine::FeedMap feeds = batch.feeds();
    if (case_.routes) {
      add_routes(case_.routes->at(done_), &feeds);
    }
    session.feed(feeds);
    session.step();
    if (case_.keep_routes) {
      kept_.push_back(routes_of(session));
    }
    ++done_;
  }
  std::shared_ptr<const std::vector<Routes>> kept() const {
    if (!case_.keep_routes) return case_.routes;
    return std::make_shared<const std::vector<Routes>>(kept_);
  }

 private:
  const Case& case_;
  const engine::Run& run_;
  std::vector<Routes> kept_;
  size_t done_ = 0;
};

/// Returns the run of a case under its plan, or on one rank.
engine::Run run_of(const Case& c, bool single, const std::vector<std::string>& overrides) {
  std::vector<std::string> settings = overrides;
  if (single) {
    for (const char* one : {"plan.moe_chunks=1", "plan.cp_order=contiguous"}) {
      settings.push_back(one);
    }
  }
  engine::Run run = engine::parse_run(c.text, c.name, settings);
  if (single) {
    run.plan.micro_batch = run.plan.sequences();
    run.plan.dp_samples.clear();
    run.plan.cp_shares.clear();
    run.plan.pp = run.plan.dp = run.plan.ep = run.plan.ep_inner = run.plan.cp = run.plan.tp = 1;
    run.plan.etp = 1;
    run.plan.heads_apart = 0;
    run.plan.sequence_parallel = run.plan.exchange_heads = run.plan.ring = false;
    run.plan.uneven_parts = false;
    run.plan.layouts.clear();
    run.plan.pp_layers.clear();
    run.plan.pp_chunks = 1;
    run.plan.pp_schedule = "1f1b";
  }
  return run;
}

Logits logits_of(const Case& c, bool single) {
  const engine::Run run = run_of(c, single, {});
  runtime::RankOptions options;
  options.threads = 1;
  runtime::LocalRanks ranks = ranks_of(c, single, static_cast<int32_t>(run.plan.world()), options);
  engine::Compiled compiled = compile(engine::logits(run), c);
  expect_good(compiled);
  const runtime::Store store(ranks);
  initialise(compiled, c, store);
  engine::Session session(std::move(compiled), store);
  Steps steps(c, run);
  steps.one(0, session);
  Logits made{{}, steps.kept()};
  const graph::DType dtype = graph::parse_dtype(run.config.model.dtype);
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    const std::vector<double> part = as_doubles(session.collect(graph::names::kLogits, m), dtype);
    made.values.insert(made.values.end(), part.begin(), part.end());
  }
  return made;
}

}  // namespace

Logits logits(const Case& c) { return logits_of(c, false); }

Logits logits_on_one_rank(const Case& c) { return logits_of(c, true); }

namespace {

/// Returns the numbers that the program has beside the loss, one micro-batch after the other: sums
/// over answers or over targets.
std::map<std::string, std::vector<double>> metrics_of(const engine::Session& session) {
  std::map<std::string, std::vector<double>> metrics;
  for (const graph::TensorId id : session.graph().outputs) {
    const graph::Tensor& tensor = session.graph().tensor(id);
    if (tensor.type.dtype != graph::DType::f64 || tensor.name == graph::names::kGradNorm) continue;
    std::vector<double>& all = metrics[tensor.name];
    for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
      const std::vector<double> some = session.collect_as<double>(tensor.name, m);
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return metrics;
}

}  // namespace

Outcome train(const Case& c, const TrainOptions& train_options) {
  const bool single = train_options.on_one_rank;
  engine::Run run = run_of(c, single, train_options.overrides);
  Outcome out;
  Steps done(c, run);
  const auto world = static_cast<int32_t>(run.plan.world());
  runtime::RankOptions options;
  options.threads = 1;
  options.poison = train_options.poison;
  options.device = train_options.device;
  options.timeout = std::chrono::seconds(20);
  if (train_options.with_grads) {
    runtime::LocalRanks ranks = ranks_of(c, single, world, options);
    engine::Compiled compiled = compile(engine::gradients(run), c);
    expect_good(compiled);
    const runtime::Store store(ranks);
    initialise(compiled, c, store);
    engine::Session session(std::move(compiled), store);
    done.one(0, session);
    for (graph::TensorId id : session.graph().outputs) {
      const graph::Tensor& t = session.graph().tensor(id);
      if (t.name.rfind("grad.", 0) == 0) {
        out.grads[t.name] = as_doubles(session.collect(t.name), t.type.dtype);
      }
    }
  }
  engine::Compiled compiled = compile(engine::training(run), c);
  if (train_options.rewrite) {
    train_options.rewrite(compiled.program);
  } else {
    expect_good(compiled);
  }
  // A rewrite may have changed the number of ranks.
  runtime::LocalRanks ranks = ranks_of(c, single, compiled.program.num_ranks(), options);
  const runtime::Store store(ranks);
  initialise(compiled, c, store);
  engine::Session session(std::move(compiled), store);
  for (int s = 0; s < train_options.steps; ++s) {
    done.one(s, session);
    double loss = 0;
    for (graph::TensorId id : session.graph().losses) {
      loss += session.collect_as<double>(session.graph().tensor(id).name)[0];
    }
    out.losses.push_back(loss);
    out.norms.push_back(session.collect_as<double>("grad_norm")[0]);
    out.metrics = metrics_of(session);
  }
  for (const graph::Tensor& t : session.graph().tensors) {
    if (t.kind == graph::TensorKind::param || t.kind == graph::TensorKind::state) {
      out.params[t.name] = as_doubles(engine::gather(t, session.program(), store), t.type.dtype);
    }
  }
  out.routes = done.kept();
  // The other run gets the same routes: changed last bits must not change the routers' choices.
  out.again = [=, routes = out.routes](uint64_t last_bits) {
    Case other = c;
    other.last_bits = last_bits;
    other.routes = routes;
    other.keep_routes = false;
    return train(other, train_options);
  };
  return out;
}

namespace {

using Tensors = std::map<std::string, std::vector<double>> Outcome::*;

/// Rounding error of each tensor, computed on demand: the largest change in a few runs of one rank
/// with other last bits in the parameters.
class Rounding {
 public:
  explicit Rounding(const Outcome& one) : one_(one) {}
  double of(Tensors tensors, const std::string& name) {
    for (uint64_t last_bits = again_.size() + 1; last_bits <= 4; ++last_bits) {
      again_.push_back(one_.again(last_bits));
    }
    double most = 0;
    for (const Outcome& other : again_) {
      most = std::max(most, distance((other.*tensors).at(name), (one_.*tensors).at(name)));
    }
    return most;
  }

 private:
  const Outcome& one_;
  std::vector<Outcome> again_;
};

}  // namespace

std::string difference(const Outcome& many, const Outcome& one, double tolerance) {
  constexpr double kRoundings = 100;
  const auto apart = [&](double a, double b) {
    return !(std::abs(a - b) <= tolerance * std::abs(b));
  };
  if (many.losses.size() != one.losses.size()) return "the number of steps";
  for (size_t step = 0; step < one.losses.size(); ++step) {
    if (apart(many.losses[step], one.losses[step])) return fmt::format("the loss of step {}", step);
    if (apart(many.norms[step], one.norms[step])) return fmt::format("the norm of step {}", step);
  }
  Rounding rounding(one);
  for (const Tensors tensors : {&Outcome::metrics, &Outcome::grads, &Outcome::params}) {
    const auto& found = many.*tensors;
    if (found.size() != (one.*tensors).size()) return "the number of tensors";
    for (const auto& [name, values] : one.*tensors) {
      const auto own = found.find(name);
      if (own == found.end()) return name;
      if (relative_l2(own->second, values) <= tolerance) continue;
      if (!(distance(own->second, values) <= kRoundings * rounding.of(tensors, name))) return name;
    }
  }
  return "";
}

MutantCounts try_mutants(const Case& c, uint64_t mutants, uint64_t seed, const char* kind) {
  MutantCounts counts;
  const engine::Compiled good = engine::compile(engine::parse_run(c.text, c.name, {}));
  const Outcome one = train(c, {.on_one_rank = true, .with_grads = false});
  for (uint64_t i = 0; i < mutants; ++i) {
    program::Program mutant = good.program;
    check::Mutation mutation;
    if (!check::mutate(mutant, seed * 100003 + i, &mutation, i % 2 == 0 ? kind : "")) continue;
    const std::string what = c.name + ": " + mutation.kind + ": " + mutation.text;
    const check::Verdict verdict = check::check(mutant, good.reference);
    if (!verdict.ok()) {
      ++counts.refused;
      if (check::localise(mutation, verdict) == check::Localisation::missed && ++counts.far == 1) {
        counts.far_first = what + "\n" + to_text(verdict);
      }
      continue;
    }
    ++counts.equal;
    const auto run_mutant = [&](program::Program& program) { program = mutant; };
    EXPECT_NO_THROW(
        EXPECT_EQ(
            difference(train(c, {.poison = true, .with_grads = false, .rewrite = run_mutant}), one),
            "")
        << what)
        << what;
  }
  return counts;
}

}  // namespace hocket::test
