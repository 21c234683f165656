// SPDX-License-Identifier: Apache-2.0
#include "train/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <latch>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "comm/link_times.h"
#include "comm/solo.h"
#include "data/zipf.h"
#include "engine/batch.h"
#include "engine/params.h"
#include "engine/session.h"
#include "graph/names.h"
#include "ops/op.h"
#include "runtime/executor.h"
#include "runtime/probe.h"
#include "runtime/staged.h"
#include "train/known_inputs.h"
#include "train/preference.h"

namespace hocket::train {

namespace {

/// Adds answers of preferences: two in every sequence, equally long.
void answer_by_halves(const engine::Run& run, int64_t micro_batches, engine::Batch& batch) {
  batch.add_answers();
  for (size_t i = 0; i < batch.answers.size(); ++i) {
    batch.answers[i] = 2 * (static_cast<int64_t>(i) % batch.seq_len) < batch.seq_len ? 0 : 1;
  }
  AnswerPlaces places(run, batch.rows, micro_batches);
  places.number(batch);
  batch.more.keep(graph::names::kReference,
                  std::vector<double>(static_cast<size_t>(places.size()), 0));
  batch.more.keep(graph::names::kDivergence,
                  std::vector<double>(static_cast<size_t>(micro_batches), 0));
}

/// Inputs of the kind that training has: tokens as frequent as words are, whole sequences as
/// documents, and a learning rate of 0, so that the weights stay good.
engine::Batch random_batch(const engine::Run& run, const engine::Compiled& compiled) {
  Rng rng(1);
  engine::Batch batch = engine::empty_batch(compiled, run.config.train.seq_len);
  const data::ZipfTokens tokens(run.model.vocab_size);
  for (int32_t& token : batch.tokens) {
    token = tokens.draw(rng);
  }
  for (int32_t& target : batch.targets) {
    target = tokens.draw(rng);
  }
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    batch.positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % batch.seq_len);
  }
  batch.loss_scale = 1.0 / static_cast<double>(compiled.tokens_per_step);
  batch.hyper = engine::hyper_of(run.config.optimizer, 0, 1);
  if (run.config.prefers()) {
    answer_by_halves(run, compiled.program.num_micro_batches, batch);
  }
  return batch;
}

constexpr int kWarmUp = 2, kMinPasses = 5;  // passes over the tasks of a class

/// Nanoseconds of a task by its key, a value per pass: the mean over the tasks of that key.
using Samples = std::map<std::string, std::vector<double>>;

/// Distribution of rows over experts, observed while tasks run.
class Routing {
 public:
  explicit Routing(int64_t experts) : experts_(experts) {}

  /// Returns a task's rows relative to even routing, before it runs; 1: no routed rows.
  double share(const program::Kind& kind, const program::Task& task,
               const runtime::Executor& executor) const {
    const auto rows = std::find_if(kind.in.begin(), kind.in.end(),
                                   [](const graph::TensorType& type) { return type.routed(); });
    if (rows == kind.in.end()) return 1;
    std::vector<int64_t> counts;  // of the experts that are here
    for (size_t i = 0; i < kind.in.size(); ++i) {
      if (is_counts(kind.in[i]) && kind.in[i].dims[0] == rows->dims[0]) {
        counts = numbers(executor, task.in[i], rows->dims[0]);
      }
    }
    if (counts.empty()) return 1;
    const int64_t here = rows->dims[0];
    const double even = static_cast<double>(rows->dims[1]) * rows->top_k *
                        static_cast<double>(here) / static_cast<double>(experts_);
    const double got =
        static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    return even > 0 && got > 0 ? got / even : 1;
  }

  /// Adds the counts that a task makes of all experts. After it has run.
  void add(const program::Kind& kind, const program::Task& task,
           const runtime::Executor& executor) {
    if (kind.out.empty() || !is_counts(kind.out[0]) || kind.out[0].dims[0] != experts_) return;
    const std::vector<int64_t> counts = numbers(executor, task.out[0], experts_);
    std::vector<int64_t>& rows = layers_[task.layer];
    rows.resize(static_cast<size_t>(experts_));
    for (size_t expert = 0; expert < rows.size(); ++expert) {
      rows[expert] += counts[expert];
    }
  }

  std::vector<std::vector<int64_t>> layers() const {
    std::vector<std::vector<int64_t>> list;
    for (const auto& [layer, rows] : layers_) {
      list.push_back(rows);
    }
    return list;
  }

 private:
  static std::vector<int64_t> numbers(const runtime::Executor& executor, program::BufferId buffer,
                                      int64_t count) {
    std::vector<int64_t> numbers(static_cast<size_t>(count));
    executor.device().copy(numbers.data(), executor.data(buffer),
                           count * static_cast<int64_t>(sizeof(int64_t)));
    return numbers;
  }
  static bool is_counts(const graph::TensorType& type) {
    return type.dtype == graph::DType::i64 && type.dims.size() == 1;
  }

  int64_t experts_;
  std::map<int32_t, std::vector<int64_t>> layers_;
};

/// The key under which each task of a class is timed; empty for communication, which is not.
std::vector<std::string> keys_of(const program::Program& program, const program::RankClass& cls) {
  std::vector<std::string> keys(cls.tasks.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const program::Task& task = cls.tasks[i];
    if (!program::is_communication(program.kind(task))) {
      keys[i] = cost::kind_key(program.kind(task), task.accumulate.bits());
    }
  }
  return keys;
}

/// Runs all tasks of one rank in order, pass after pass, for the time that is asked for. The first
/// passes, which touch memory for the first time, do not count.
void time_passes(const program::Program& program, const program::RankClass& cls,
                 const std::vector<std::string>& keys, const ProfileOptions& options,
                 runtime::Executor& executor, Samples& samples, Routing& routing) {
  int64_t start = now_ns();
  const auto is_over = [&](int64_t counted) {
    return counted >= kMinPasses &&
           (counted >= options.max_repeats || seconds_since(start) >= options.seconds);
  };
  for (int64_t pass = 0; !is_over(pass - kWarmUp); ++pass) {
    if (pass == kWarmUp) {
      start = now_ns();
    }
    std::map<std::string, std::pair<double, int>> sums;  // of this pass
    executor.run_inline([&](program::TaskId id, const std::function<void()>& task) {
      const std::string& key = keys[id];
      const program::Task& what = cls.tasks[id];
      const double share = routing.share(program.kind(what), what, executor);
      const int64_t begin = now_ns();
      task();
      auto& [ns, count] = sums[key];
      ns += seconds_since(begin) * 1e9 / share;
      ++count;
      if (pass == 0) {
        routing.add(program.kind(what), what, executor);
      }
    });
    if (pass >= kWarmUp) {
      for (const auto& [key, sum] : sums) {
        samples[key].push_back(sum.first / sum.second);
      }
    }
    if (options.progress && pass >= kWarmUp) {
      const double passes = static_cast<double>(pass - kWarmUp + 1) / kMinPasses;
      const double time = seconds_since(start) / std::max(options.seconds, 1e-9);
      options.progress(
          fmt::format("timing tasks: {}, {:.0f} %", cls.name, 100 * std::min({1.0, passes, time})));
    }
  }
}

/// A rank of a class with tasks that run alone; communication from others completes at once.
class SoloRank {
 public:
  SoloRank(const engine::Compiled& compiled, int32_t rank, const engine::Batch& batch,
           const KnownInputs& known, const std::shared_ptr<kernels::Backend>& backend, int threads,
           const std::shared_ptr<runtime::Device>& device)
      : solo_(rank, [&known](int32_t me, const comm::Call& call) { known.fill(me, call); }),
        staged_(solo_, device),
        rank_(rank, backend, device ? static_cast<comm::Communicator*>(&staged_) : &solo_,
              options(threads, device)),
        // Lives longer than the executor.
        program_(std::shared_ptr<void>(), &compiled.program) {
    const std::shared_ptr<runtime::PersistentStore> store = rank_.make_store();
    engine::initialise(compiled.reference, compiled.program, 1, *store);
    executor_.emplace(rank_, store, program_);
    engine::feed(batch.feeds(), compiled, rank, *executor_);
  }
  runtime::Executor& executor() { return *executor_; }

 private:
  static runtime::RankOptions options(int threads, const std::shared_ptr<runtime::Device>& device) {
    runtime::RankOptions options;
    options.threads = threads;
    if (device) {
      options.device = device;
    }
    return options;
  }

  comm::SoloCommunicator solo_;
  runtime::StagedCommunicator staged_;  ///< of a device
  runtime::Rank rank_;
  std::shared_ptr<const program::Program> program_;
  std::optional<runtime::Executor> executor_;
};

/// Times the tasks of a class on its first rank, while `beside` others of the class do the same:
/// ranks of one machine share its memory and caches.
void time_class(const engine::Compiled& compiled, program::ClassId cls_id,
                const engine::Batch& batch, const KnownInputs& known,
                const std::shared_ptr<kernels::Backend>& backend, int threads, int64_t beside,
                const ProfileOptions& options, Samples& samples, Routing& routing) {
  const program::Program& program = compiled.program;
  const program::RankClass& cls = program.classes[cls_id];
  const std::vector<std::string> keys = keys_of(program, cls);
  const std::vector<int32_t> ranks = program.ranks_of(cls_id);
  std::atomic<bool> over = false;
  std::latch ready(beside + 1);
  // Lane threads of their own, as in a run: thread counts are set per thread.
  std::vector<std::exception_ptr> errors(static_cast<size_t>(beside) + 1);
  std::vector<std::thread> threads_of_ranks;
  for (size_t i = 0; i < errors.size(); ++i) {
    threads_of_ranks.emplace_back([&, i] {
      std::optional<SoloRank> rank;
      try {
        rank.emplace(compiled, ranks[i % ranks.size()], batch, known, backend, threads,
                     options.device);
      } catch (...) {
        errors[i] = std::current_exception();
        over = true;
      }
      ready.arrive_and_wait();
      try {
        if (i == 0 && !over) {
          time_passes(program, cls, keys, options, rank->executor(), samples, routing);
        }
        while (i > 0 && !over) {
          rank->executor().run_inline(
              [](program::TaskId, const std::function<void()>& task) { task(); });
        }
      } catch (...) {
        errors[i] = std::current_exception();
      }
      over = true;
    });
  }
  for (std::thread& thread : threads_of_ranks) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

/// Puts a task's median time into the profile, and raises the rates of the machine that it shows:
/// of large products, which MFU is a share of, and of memory, by tasks with less arithmetic than
/// bytes.
void add_task(const cost::ProfileTarget& target, const program::Kind& kind,
              const std::vector<double>& ns, cost::Profile& result) {
  HOCKET_CHECK(!ns.empty(), "{} was not timed", target.key);
  const double middle = median(ns);
  const std::string dtype = to_string(program::compute_dtype(kind));
  result.tasks.push_back({target.key, kind.op, dtype, kind.flops, kind.bytes,
                          static_cast<int64_t>(middle),
                          (quantile(ns, 0.75) - quantile(ns, 0.25)) / middle});
  const ops::Op* const op = ops::find_or_null(kind.op);  // null: not an op of ours
  const bool product = op != nullptr && op->cost_class == ops::CostClass::matmul;
  const double seconds = middle * 1e-9;
  if (product && kind.flops > 1e7) {
    double& peak = result.peak_flops[dtype];
    peak = std::max(peak, kind.flops / seconds);
  }
  if (kind.flops < static_cast<double>(kind.bytes) && kind.bytes > 1 << 20) {
    result.memory_bytes_per_s =
        std::max(result.memory_bytes_per_s, static_cast<double>(kind.bytes) / seconds);
  }
}

cost::TimedLink timed_link(const comm::LinkTimes& link) {
  return {link.latency_s * 1e9,        link.bytes_per_s,      link.collective_latency_s * 1e9,
          link.collective_bytes_per_s, link.compute_slowdown, link.collective_slowdown};
}

/// Work of a rank, which links are timed beside.
std::function<comm::Work()> probes(const std::shared_ptr<kernels::Backend>& backend) {
  return [backend]() -> comm::Work {
    const auto probe = std::make_shared<runtime::Probe>(backend);
    backend->enter_thread(1);
    return [probe] { probe->multiply(); };
  };
}

}  // namespace

cost::Profile profile(const engine::Run& run, const engine::Compiled& compiled,
                      const std::shared_ptr<kernels::Backend>& backend,
                      const ProfileOptions& options) {
  // Every distinct task is timed on a rank of a class that has it, then the links between ranks.
  const program::Program& program = compiled.program;
  cost::Profile result;
  result.machine = engine::machine_facts();
  result.machine["backend"] = backend->describe();
  result.cores = std::max(1u, std::thread::hardware_concurrency());
  result.threads = engine::threads_per_rank(run.plan);
  const std::vector<cost::ProfileTarget> targets = cost::distinct_tasks(program);
  const engine::Batch batch = random_batch(run, compiled);
  std::set<int32_t> classes;
  for (const cost::ProfileTarget& target : targets) {
    classes.insert(target.cls);
  }
  // The number of concurrently timed ranks: those of a machine, at most one per core.
  const int64_t here = options.links.empty() || run.plan.ranks_per_node == 0
                           ? run.plan.world()
                           : std::min(run.plan.ranks_per_node, run.plan.world());
  const int64_t beside =
      std::clamp<int64_t>(result.cores / std::max<int64_t>(1, result.threads), 1, here) - 1;
  std::vector<int32_t> alone;
  for (const program::ClassId cls : classes) {
    const std::vector<int32_t> ranks = program.ranks_of(cls);
    const auto most = std::min(std::ssize(ranks), beside + 1);
    alone.insert(alone.end(), ranks.begin(), ranks.begin() + most);
  }
  KnownInputs known(compiled, alone);
  known.feed(batch.feeds(), compiled);
  Samples samples;
  Routing routing(run.model.num_experts);
  runtime::Probe probe(backend);
  std::vector<double> speeds = {probe.flops_per_s()};
  for (program::ClassId cls : classes) {
    time_class(compiled, cls, batch, known, backend, static_cast<int>(result.threads), beside,
               options, samples, routing);
    speeds.push_back(probe.flops_per_s());
  }
  result.probe_flops = median(speeds);
  for (const cost::ProfileTarget& target : targets) {
    add_task(target, program.kinds[target.kind], samples[target.key], result);
  }
  result.routing = routing.layers();
  result.links = options.links;
  if (program.num_ranks() > 1 && result.links.empty()) {
    const cost::TimedLink link =
        timed_link(comm::time_local_link(probes(backend), options.max_repeats));
    result.links = {{"intra", link}, {"inter", link}};
  }
  return result;
}

std::map<std::string, cost::TimedLink> measure_links(const engine::Run& run,
                                                     runtime::LocalRanks& ranks, int max_repeats) {
  std::map<std::string, cost::TimedLink> links;
  if (ranks.processes().size() == 1) return links;
  for (const auto& [name, link] :
       comm::time_links(ranks.world(), ranks.ids(), run.plan.ranks_per_node,
                        probes(kernels::cpu_backend()), max_repeats)) {
    links[name] = timed_link(link);
  }
  return links;
}

namespace {

/// Why a profile does not do for a program on this machine with these kernels; empty if it does.
std::string shortcoming(const cost::Profile& profile, const engine::Run& run,
                        const program::Program& program, const kernels::Backend& backend) {
  const int threads = engine::threads_per_rank(run.plan);
  if (profile.threads != threads) {
    return fmt::format("was taken with {} per rank; this plan has {}",
                       counted(profile.threads, "thread"), threads);
  }
  const std::string other =
      engine::mismatch(profile, engine::local_cluster(run), backend.describe());
  if (!other.empty()) return other;
  if (program.num_ranks() > 1 && profile.links.empty()) return "has no times of links";
  std::set<std::string> timed;
  for (const cost::TimedTask& task : profile.tasks) {
    timed.insert(task.key);
  }
  const std::vector<cost::ProfileTarget> targets = cost::distinct_tasks(program);
  const auto missing = std::count_if(targets.begin(), targets.end(), [&](const auto& target) {
    return !timed.contains(target.key);
  });
  if (missing > 0) return fmt::format("lacks {} of the {} tasks", missing, targets.size());
  return "";
}

/// Returns the profile with the links of the hosts that the ranks are on this time.
cost::Profile with_links(cost::Profile profile, const ProfileOptions& options) {
  if (!options.links.empty()) {
    profile.links = options.links;
  }
  return profile;
}

bool same_file(const std::string& text, const std::string& b) {
  std::error_code none_there;
  return std::filesystem::equivalent(text, b, none_there);
}

}  // namespace

cost::Profile profile_for(const engine::Run& run, const engine::Compiled& compiled,
                          const std::shared_ptr<kernels::Backend>& backend,
                          const ProfileOptions& options) {
  const std::string& given = run.config.cluster.profile;
  const std::string own = run.config.output.dir + "/profile.json";
  if (!given.empty()) {
    const cost::Profile profile = with_links(cost::read_profile(given), options);
    const std::string why = shortcoming(profile, run, compiled.program, *backend);
    if (why.empty()) return profile;
    if (same_file(given, own)) {
      fail(run.name,
           "cluster.profile is {}, which {}; a new one would replace this input; try "
           "without cluster.profile",
           given, why);
    }
    fmt::print("profile  {} {}; all tasks are timed, for {}\n", given, why, own);
    std::fflush(stdout);
  }
  try {
    cost::Profile earlier = with_links(cost::read_profile(own), options);
    if (shortcoming(earlier, run, compiled.program, *backend).empty()) return earlier;
  } catch (const Error& error) {
    // Absent, of an older format, or damaged; a file that was never a profile stays.
    if (file_exists(own) && read_file(own).find("hocket-profile-") == std::string::npos) {
      throw error.with("this run would replace it with its own timings; choose another output.dir");
    }
  }
  cost::Profile fresh = profile(run, compiled, backend, options);
  write_file_atomic(own, cost::to_json(fresh));
  return fresh;
}

}  // namespace hocket::train
