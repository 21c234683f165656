// SPDX-License-Identifier: Apache-2.0
#include "tests/diagnose/report_demo_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "diagnose/report_fill.h"

namespace hocket::diagnose {
namespace {

using program::Lane;
using trace::FlowEnd;
using trace::Trace;
using trace::TraceEvent;

constexpr int kLayers = 4, kExperts = 8, kMicroBatches = 4, kHidden = 256, kVocab = 4096;
constexpr double kTokens = 2048;

struct Op {
  std::string kind;
  double flops, bytes;
  int layer;
};

std::vector<Op> forward_ops(int first, int last) {
  const double t = kTokens, d = kHidden, act = 4 * t * d;
  std::vector<Op> ops;
  if (first == 0) {
    ops.push_back({"embedding", 0, 2 * act, -1});
  }
  for (int l = first; l < last; ++l) {
    ops.insert(ops.end(), {{"rms_norm", 4 * t * d, 2 * act, l},
                           {"linear", 2 * t * d * 512, 3 * act, l},
                           {"rope", 6 * t * 384, 2.5 * act, l},
                           {"attention", 2 * t * 512 * d, 3 * act, l},
                           {"linear", 2 * t * d * d, 2 * act, l},
                           {"add", t * d, 3 * act, l},
                           {"rms_norm", 4 * t * d, 2 * act, l},
                           {"router", 2 * t * d * kExperts, act, l},
                           {"route_plan", 0, 64 * t, l},
                           {"dispatch", 0, 4 * act, l},
                           {"grouped_linear", 2 * 2 * t * d * 512, 8 * act, l},
                           {"swiglu", 8 * 2 * t * d, 6 * act, l},
                           {"grouped_linear", 2 * 2 * t * d * d, 5 * act, l},
                           {"combine", 2 * 2 * t * d, 4 * act, l},
                           {"balance_loss", 16 * t, 64 * t, l},
                           {"add", t * d, 3 * act, l}});
  }
  if (last == kLayers) {
    ops.push_back({"rms_norm", 4 * t * d, 2 * act, kLayers});
    ops.push_back({"linear_cross_entropy", 6 * t * d * kVocab, 6 * act, kLayers});
  }
  return ops;
}

std::vector<Op> backward_ops(const std::vector<Op>& forward) {
  std::vector<Op> ops;
  for (auto f = forward.rbegin(); f != forward.rend(); ++f) {
    if (f->kind == "linear_cross_entropy") continue;
    if (f->kind == "linear" || f->kind == "grouped_linear") {
      ops.push_back({f->kind + "_dx", f->flops, f->bytes, f->layer});
      ops.push_back({f->kind + "_dw", f->flops, f->bytes, f->layer});
    } else if (f->kind == "embedding") {
      ops.push_back({"embedding_dw", 0, f->bytes, f->layer});
    } else if (f->kind == "attention") {
      ops.push_back({"attention_bwd", 2.5 * f->flops, 2 * f->bytes, f->layer});
    } else if (f->kind != "route_plan" && f->kind != "add") {
      ops.push_back({f->kind + "_bwd", f->flops, 1.5 * f->bytes, f->layer});
    }
  }
  return ops;
}

double seconds_of(const Op& op) {
  const bool gemm = op.kind.find("linear") != std::string::npos;
  const bool attention = op.kind.rfind("attention", 0) == 0;
  const double rate = gemm ? 190e9 : attention ? 60e9 : 40e9;
  return 2e-6 + std::max(op.flops / rate, op.bytes / 24e9);
}

// Walks a 1F1B schedule of `stages` stages, by list order of (stage, micro-batch, backward).
class Walk {
 public:
  Walk(int ranks, std::string source, double noise, uint64_t seed)
      : ranks_(ranks), stages_(ranks == 1 ? 1 : 2), noise_(noise), rng_(seed) {
    trace_.source = std::move(source);
    trace_.num_ranks = ranks;
    trace_.title = "demo";
    free_.assign(static_cast<size_t>(ranks), std::vector<int64_t>(program::kNumLanes, 0));
  }
  Trace run(const std::vector<int32_t>& steps) {
    int64_t begin = 0;
    for (const int32_t step : steps) {
      step_ = step;
      begin = one_step(begin) + 900'000;
      for (auto& lanes : free_) {
        std::fill(lanes.begin(), lanes.end(), begin);
      }
    }
    trace_.steps = steps;
    return std::move(trace_);
  }

 private:
  int64_t add(int rank, Lane lane, const Op& op, int64_t ready, const char* phase, int mb) {
    int64_t& free = free_[rank][place_of(lane)];
    TraceEvent e;
    e.start_ns = std::max(free, ready) + 1500;
    const double wobble = std::exp(noise_ * std::normal_distribution<>()(rng_));
    e.end_ns = free = e.start_ns + static_cast<int64_t>(1e9 * seconds_of(op) * wobble);
    e.kind = trace_.intern(op.kind);
    e.phase = trace_.intern(phase);
    e.rank = rank;
    e.lane = static_cast<uint16_t>(lane);
    e.step = step_;
    e.micro_batch = mb;
    e.layer = trace_.intern(graph::layer_name(op.layer, kLayers));
    e.stage = rank * stages_ / ranks_;
    e.bytes = static_cast<int64_t>(op.bytes);
    e.flops = op.flops;
    e.task = task_++;
    trace_.events.push_back(e);
    return e.end_ns;
  }
  int64_t block(int rank, int mb, bool backward, int64_t ready) {
    const int stage = rank * stages_ / ranks_, per = kLayers / stages_;
    std::vector<Op> ops = forward_ops(stage * per, (stage + 1) * per);
    if (backward) {
      ops = backward_ops(ops);
    }
    const char* phase = backward ? "backward" : "forward";
    int64_t now = ready;
    for (const Op& op : ops) {
      const bool routed = op.kind.rfind("dispatch", 0) == 0 || op.kind.rfind("combine", 0) == 0;
      now = add(rank, Lane::compute, op, now, phase, mb);
      if (routed && ranks_ > 1) {
        now = add(rank, Lane::intra, {"all_to_all", 0, 5e6, op.layer}, now, phase, mb);
      }
    }
    return now;
  }
  int64_t one_step(int64_t begin) {
    std::map<std::pair<int, int>, int64_t> sent, returned;  // (rank, mb) -> arrival
    const int replicas = ranks_ / stages_;
    for (int rank = 0; rank < ranks_; ++rank) {
      task_ = 0;
    }
    // Forward and backward interleaved per stage; stage 0 first so that arrivals are known.
    const auto forward = [&](int rank, int mb) {
      const int stage = rank / std::max(1, replicas);
      const int64_t ready = stage == 0 ? begin : sent[{rank, mb}];
      const int64_t end = block(rank, mb, false, ready);
      if (stage + 1 < stages_) {
        transfer(rank, rank + replicas, mb, end, "forward", &sent);
      }
    };
    const auto backward = [&](int rank, int mb) {
      const int stage = rank / std::max(1, replicas);
      const int64_t ready = stage + 1 == stages_ ? begin : returned[{rank, mb}];
      const int64_t end = block(rank, mb, true, ready);
      if (stage > 0) {
        transfer(rank, rank - replicas, mb, end, "backward", &returned);
      }
    };
    if (stages_ == 1) {
      for (int mb = 0; mb < kMicroBatches; ++mb) {
        forward(0, mb), backward(0, mb);
      }
    } else {
      for (int r = 0; r < replicas; ++r) {
        forward(r, 0), forward(r, 1);
        for (int mb = 0; mb < kMicroBatches; ++mb) {
          forward(replicas + r, mb), backward(replicas + r, mb);
          backward(r, mb);
          if (mb + 2 < kMicroBatches) {
            forward(r, mb + 2);
          }
        }
      }
    }
    int64_t end = begin;
    for (int rank = 0; rank < ranks_; ++rank) {
      int64_t now = begin;
      if (ranks_ > 1) {
        now = add(rank, Lane::intra, {"all_reduce", 0, 9e6, -1}, last(rank), "grad", -1);
      }
      const double n = 9.2e6 / stages_;
      now = add(rank, Lane::compute, {"sumsq", 2 * n, 4 * n, -1}, now, "grad", -1);
      now = add(rank, Lane::compute, {"clip_coef", 10, 100, -1}, now, "optimizer", -1);
      end = std::max(end,
                     add(rank, Lane::compute, {"adamw", 12 * n, 28 * n, -1}, now, "optimizer", -1));
    }
    return end;
  }
  int64_t last(int rank) { return free_[rank][0]; }
  void transfer(int from, int to, int mb, int64_t ready, const char* phase,
                std::map<std::pair<int, int>, int64_t>* arrivals) {
    const Op op{"send", 0, 4 * kTokens * kHidden * 2, -1};
    const int64_t end = add(from, Lane::intra_tx, op, ready, phase, mb);
    TraceEvent& out = trace_.events.back();
    out.flow = ++flow_;
    out.flow_end = FlowEnd::out;
    const int64_t start = out.start_ns;
    Op receive = op;
    receive.kind = "recv";
    (*arrivals)[{to, mb}] =
        add(to, Lane::intra_rx, receive, std::max(start, end - 700'000), phase, mb);
    trace_.events.back().flow = flow_;
    trace_.events.back().flow_end = FlowEnd::in;
  }

  int ranks_, stages_;
  double noise_;
  std::mt19937_64 rng_;
  Trace trace_;
  std::vector<std::vector<int64_t>> free_;
  int32_t step_ = 0;
  uint32_t task_ = 0;
  int64_t flow_ = 0;
};

// First fit over the compute tasks of rank 0: outputs that backward needs live until then.
MemoryPlan demo_memory(const Trace& step, int rank, const std::string& name) {
  MemoryPlan plan;
  plan.name = name;
  std::vector<const TraceEvent*> tasks;
  for (const TraceEvent& e : step.events) {
    if (e.rank == rank && e.lane == 0) {
      tasks.push_back(&e);
    }
  }
  std::map<std::tuple<int, int, int>, int> seen;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TraceEvent& e = *tasks[i];
    const std::string& kind = step.text(e.kind);
    const bool forward = step.text(e.phase) == "forward";
    size_t end = std::min(i + 3, tasks.size() - 1);
    std::string what = step.text(e.phase) == "optimizer" ? "optimizer"
                       : forward                         ? "forward only"
                                                         : "backward only";
    if (forward && kind != "add" && kind != "rope" && kind != "router") {
      for (size_t j = tasks.size() - 1; j > i; --j) {
        if (tasks[j]->layer == e.layer && tasks[j]->micro_batch == e.micro_batch &&
            step.text(tasks[j]->kind).rfind(kind, 0) == 0) {
          end = j;
          what = "kept for backward";
          break;
        }
      }
    }
    int64_t bytes = std::max<int64_t>(e.bytes / 4, 4096) / 64 * 64;
    if (kind.find("_dw") != std::string::npos) {
      if (e.micro_batch > 0) continue;
      what = "parameter gradient";
      end = tasks.size() - 1;
      bytes = kind[0] == 'g' ? 2'100'000 : kind[0] == 'e' ? 4'194'304 : 524'288;
    }
    plan.blocks.push_back(
        {fmt::format("output of {}, {}, micro-batch {}", kind, step.text(e.layer), e.micro_batch),
         what, 1e-9 * static_cast<double>(e.start_ns),
         1e-9 * static_cast<double>(tasks[end]->end_ns), 0, bytes});
    MemoryBlock& b = plan.blocks.back();
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const MemoryBlock& o : plan.blocks) {
      if (&o != &b && o.begin < b.end && b.begin < o.end) {
        taken.push_back({o.offset, o.offset + o.bytes});
      }
    }
    std::sort(taken.begin(), taken.end());
    for (const auto& [low, high] : taken) {
      if (b.offset + bytes <= low) break;
      b.offset = std::max(b.offset, high);
    }
    plan.planned.step_buffers = std::max(plan.planned.step_buffers, b.offset + bytes);
  }
  for (size_t i = 0; i < tasks.size(); i += 2) {
    plan.blocks.push_back({"workspace of " + step.text(tasks[i]->kind), "workspace",
                           1e-9 * static_cast<double>(tasks[i]->start_ns),
                           1e-9 * static_cast<double>(tasks[i]->end_ns), plan.planned.step_buffers,
                           3'000'000});
  }
  plan.planned.step_buffers += 3'000'000;
  plan.persistent = {{"parameters", 36'800'000}, {"optimizer state", 73'600'000}};
  plan.planned.persistent = 110'400'000;
  plan.planned.inputs_outputs = 100'000;
  plan.planned.evaluation = 9'000'000;
  plan.measured = plan.planned;
  plan.measured.step_buffers =
      static_cast<int64_t>(0.985 * static_cast<double>(plan.planned.step_buffers));
  return plan;
}

}  // namespace

ReportData demo_report(int ranks, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto noise = [&](double s) { return s * std::normal_distribution<>()(rng); };
  ReportData r;
  r.title = "Quickstart: a small mixture of experts learns C++";
  r.subtitle = ranks == 1 ? "qwen3_moe · 9.2 M parameters · 1 rank, 2 threads"
                          : "qwen3_moe · 9.2 M parameters · pp 2 × dp 2 (ep 2)";
  r.date = "2025-11-21 09:14";
  r.status = "finished";
  r.command = "hocket train configs/runs/quickstart.yaml";
  r.version = "0.1.0";
  r.data_name = "held-out C++ headers";
  r.world = ranks;
  r.parameters = 9.24e6;
  r.active_parameters = 4.51e6;
  r.peak_flops = 214e9;
  r.peak_flops_what = "measured GEMM rate";
  r.memory_bandwidth = 31e9;
  r.baselines = {{"xz −9e", 1.68, "every held-out file compressed on its own"},
                 {"Witten-Bell trigram", 1.15, "over the same tokens and training files"}};
  r.prediction_provenance =
      "97 % of the time from tasks timed in isolation, 3 % interpolated; "
      "not modelled: cache state between tasks, the operating system";
  r.facts = {{"Model",
              {{"family", "qwen3_moe"},
               {"layers", "4, hidden 256, 4 heads (2 key/value)"},
               {"experts", "8, 2 per token, width 256"},
               {"vocabulary", "4,096 (byte-level BPE)"}}},
             {"Plan",
              {{"mesh", ranks == 1 ? "1 rank, 2 threads" : "pp 2 × dp 2, ep 2"},
               {"batch", "16 sequences × 512, 4 micro-batches"},
               {"passes", "recompute off, buckets 4 MiB"},
               {"check", "proved equal to the single-device graph (1,412 tasks)"}}},
             {"Machine",
              {{"CPU", "2 cores, AVX-512"},
               {"GEMM", "214 GFLOP/s, f32"},
               {"memory", "31 GB/s"},
               {"kernels", "x86-64-v4"}}},
             {"Data",
              {{"corpus", "/usr/include/c++/12, 788 files"},
               {"training", "9.8 MB, 3.1 M tokens"},
               {"held out", "0.52 MB, 41 files"}}}};
  const int kSteps = 200;
  const double predicted = ranks == 1 ? 1.452 : 0.968;
  double time = 0;
  for (int step = 0; step < kSteps; ++step) {
    TrainPoint p;
    p.step = step;
    const double x = step / double(kSteps);
    p.step_s = predicted * 1.02 * std::exp(std::fabs(noise(0.012))) +
               (step < 8 ? 0.4 / (1 + step) : 0) + (step % 71 == 50 ? 0.3 : 0);
    time += p.step_s + (step % 10 == 9 ? 1.1 : 0);
    p.time_s = time;
    p.tokens = 8192.0 * (step + 1);
    const double bpb = 1.10 + 0.52 * std::exp(-step / 60.0) + 2.55 * std::exp(-step / 9.0);
    p.loss = (bpb + noise(0.035)) * 2.31;
    p.grad_norm = 0.55 + 2.2 * std::exp(-step / 12.0) + std::fabs(noise(0.12));
    p.lr =
        step < 20 ? 2e-3 * (step + 1) / 20 : 2e-4 + 0.9e-3 * (1 + std::cos(M_PI * (x - .1) / .9));
    p.tokens_per_s = 8192 / p.step_s / ranks;
    p.tflops = 221e-3 / p.step_s / ranks;
    p.mfu = p.tflops / 0.214;
    p.predicted_step_s = predicted;
    p.peak_gib = 0.231;
    p.load_max_over_mean = 1.25 + 1.3 * std::exp(-step / 25.0) + std::fabs(noise(0.05));
    r.metrics.train.push_back(p);
    if (step % 10 == 9) {
      r.metrics.eval.push_back({step, time, (bpb + 0.035) * 2.31, bpb + 0.035});
    }
    if (step % 10 == 9 || step == 0) {
      // With four ranks every other layer is dense.
      LoadPoint load{step, {}, {}};
      for (int l = 0; l < kLayers; ++l) {
        load.layers.push_back(ranks == 1 ? l : 2 * l + 1);
      }
      for (int l = 0; l < kLayers; ++l) {
        std::vector<double> row;
        for (int e = 0; e < kExperts; ++e) {
          const double bias = std::sin(1.7 * e + 2.3 * l) * (0.16 + 0.75 * std::exp(-step / 25.0));
          row.push_back(std::round(4096 * std::exp(bias + noise(0.04))));
        }
        load.load.push_back(row);
      }
      r.metrics.load.push_back(load);
    }
  }
  r.predicted_step_s = predicted;
  std::vector<int32_t> steps;
  for (int32_t s = 100; s < 105; ++s) {
    steps.push_back(s);
  }
  fill_measured(r, Walk(ranks, "run", 0.05, seed).run(steps));
  fill_predicted(r, Walk(ranks, "simulation", 0.02, seed + 1).run({0}));
  if (ranks == 1) {
    r.memory = {demo_memory(r.step, 0, "every rank")};
  } else {
    r.memory = {demo_memory(r.step, 0, "stage 0"), demo_memory(r.step, 2, "stage 1")};
  }
  r.samples = {{"template <typename _Tp>\n  class ",
                "__node_iterator\n  {\n  public:\n    typedef _Tp                     value_type;\n"
                "    typedef ptrdiff_t               difference_type;\n"
                "    typedef std::forward_iterator_tag iterator_category;\n\n"
                "    // Construct an empty iterator.\n    __node_iterator() noexcept\n"
                "    : _M_node(nullptr) { }\n\n    explicit\n"
                "    __node_iterator(__node_type* __p) noexcept\n    : _M_node(__p) { }\n\n"
                "#if __cplusplus >= 201103L\n    reference\n    operator*() const noexcept\n"
                "    { return static_cast<_Tp&>(this->_M_node->_M_v()); }\n#endif\n\n"
                "    bool\n    operator==(const __node_iterator& __x) const\n"
                "    { return this->_M_node == __x._M_node; }\n  };\n",
                "temperature 0.7, top-p 0.95, seed 1", ranks == 1 ? "c++" : ""}};
  r.samples.insert(r.samples.begin(), r.samples[0]);
  r.samples[0].text = "of of of the the the";
  r.samples[0].when = "before training";
  r.examples = {
      {"chats.jsonl:1", 42, 12, {{false, "<|user|>\nWhy?\n<|assistant|>\n"}, {true, "So.\n"}}},
      {"chats.jsonl:2", 9, 0, {{false, "nothing is trained here"}}}};
  r.lengths = {{16, 3}, {32, 40}, {64, 0}, {128, 7}};
  r.lengths_text = "50 examples, of 9 tokens to 120, median 20";
  r.config =
      "model: configs/models/quickstart\ndata:\n  files: [/usr/include/c++/**]\n"
      "  tokenizer: {train: true, vocab_size: 4096}\ntrain:\n  seq_len: 512\n"
      "  global_batch: 16\n  lr: 2e-3\n  warmup_steps: 20\n  schedule: cosine\nplan:\n"
      "  dp: 1\n  micro_batch: 4\n  threads_per_rank: 2\noutput: runs/quickstart\n";
  r.files = {
      {"checkpoint/", "opens with transformers: AutoModelForCausalLM.from_pretrained", 37'400'000},
      {"trace.json.gz", "five steps, opens in ui.perfetto.dev", 412'000},
      {"metrics.jsonl", "every step", 186'000},
      {"run.yaml", "resolved configuration", 1'900}};
  r.next = {{"hocket train configs/runs/quickstart.yaml --set plan.pp=2 --set plan.dp=2",
             "The same model on four local ranks."},
            {"hocket simulate configs/qwen3-30b-a3b.yaml --cluster configs/clusters/h100-64x8.yaml",
             "A step of a 30 B model on 512 GPUs, predicted here."},
            {"hocket generate runs/quickstart/checkpoint --prompt 'template <typename T>'", ""}};
  r.notes = {"The first 20 steps are left out of predicted against measured."};
  return r;
}

}  // namespace hocket::diagnose
