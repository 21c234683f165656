// SPDX-License-Identifier: Apache-2.0
#include "whatif/scale.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace hocket::whatif {
namespace {

constexpr const char* kClasses[] = {"compute",     "communication", "messages",
                                    "collectives", "gradients",     "all"};

bool is_named(const std::string& what, const std::string& name) {
  if (!what.empty() && what.back() == '*')
    return name.rfind(what.substr(0, what.size() - 1), 0) == 0;
  return what == name;
}

bool means(const Scale& scale, const MeasuredRun& run, OpId op) {
  const OpKind& kind = run.kind(op);
  const std::string& what = scale.what;
  if (what == "all") return true;
  if (what == "compute") return kind.traffic == Traffic::none;
  if (what == "communication") return kind.communicates();
  if (what == "messages") return kind.traffic == Traffic::message;
  if (what == "gradients") return kind.traffic == Traffic::gradients;
  if (what == "collectives") return kind.communicates() && kind.traffic != Traffic::message;
  return is_named(what, kind.name) || is_named(what, run.names[run.ops[op].name]);
}

bool covers(const Scale& scale, const MeasuredRun& run, OpId op, SampleId sample) {
  const Worker& worker = run.worker(op, run.replica_of(sample));
  return std::all_of(scale.where.begin(), scale.where.end(), [&](const auto& place) {
    const auto& [key, value] = place;
    const int64_t at = key == "dp"     ? worker.replica.value()
                       : key == "pp"   ? worker.stage.value()
                       : key == "rank" ? worker.rank
                                       : run.steps[run.step_of(sample)];
    return at == value;
  });
}

/// Divides the durations that `scale` selects. Returns the number of ops changed.
int64_t apply(const Scale& scale, const MeasuredRun& run, std::vector<double>* durations) {
  int64_t meant = 0;
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (!means(scale, run, op)) continue;
    for (SampleId sample = 0; sample < run.samples(); ++sample) {
      if (!covers(scale, run, op, sample)) continue;
      (*durations)[run.at(op, sample)] /= scale.factor;
      ++meant;
    }
  }
  return meant;
}

/// Parses "pp=1,dp=0" behind the '@' of a scale.
void parse_where(const std::string& text, Scale* scale) {
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    int64_t value = 0;
    if (equals == part.npos || !parse_int(part.substr(equals + 1), &value) ||
        (key != "dp" && key != "pp" && key != "rank" && key != "step")) {
      fail("hocket whatif --scale",
           "got {} behind '@'; expected dp, pp, rank or step, '=' and a number", quote(part));
    }
    scale->where.push_back({key, value});
  }
}

}  // namespace

Scale parse_scale(const std::string& text, const MeasuredRun& run) {
  constexpr const char* kWhere = "hocket whatif --scale";
  constexpr double kMaxFactor = 1e9;
  Scale scale;
  scale.text = text;
  const size_t equals = text.rfind('=');
  if (equals == text.npos || !parse_double(text.substr(equals + 1), &scale.factor) ||
      !(scale.factor >= 1 / kMaxFactor && scale.factor <= kMaxFactor)) {
    fail(kWhere,
         "got {}; expected OP=FACTOR with a factor from 1e-9 to 1e9, as in "
         "forward-compute=2",
         quote(text));
  }
  scale.what = text.substr(0, equals);
  if (const size_t at = scale.what.find('@'); at != scale.what.npos) {
    parse_where(scale.what.substr(at + 1), &scale);
    scale.what.resize(at);
  }
  std::vector<double> unused = run.duration;
  if (apply(scale, run, &unused) > 0) return scale;
  std::vector<std::string> names(std::begin(kClasses), std::end(kClasses));
  for (const OpKind& kind : run.kinds) {
    names.push_back(kind.name);
  }
  const std::string near = nearest(scale.what, names);
  if (std::find(names.begin(), names.end(), scale.what) != names.end()) {
    fail(kWhere, "{} means no op of this run; expected a place and a kind that it has",
         quote(text));
  }
  fail(kWhere, "{} is no op of this run; {}", quote(scale.what),
       near.empty() ? fmt::format("expected one of {}", join(names, ", "))
                    : fmt::format("did you mean {}?", near));
}

std::vector<double> scaled(const MeasuredRun& run, const std::vector<Scale>& scales) {
  std::vector<double> durations = run.duration;
  for (const Scale& scale : scales) {
    apply(scale, run, &durations);
  }
  return durations;
}

Surface surface(const MeasuredRun& run, Replayer* replayer) {
  Surface result;
  result.bandwidths = {0.25, 0.5, 1, 2, 4, 10, 100};
  result.ratios = {1, 2, 4, 8, 16, 32};
  std::vector<double> alone = run.duration;
  for (OpId op = 0; op < run.ops.size(); ++op) {
    if (!run.kind(op).communicates()) continue;
    std::fill_n(&alone[run.at(op, 0)], run.samples(), 0.0);
  }
  result.alone = replayer->mean(alone);
  for (const double bandwidth : result.bandwidths) {
    result.seconds.emplace_back();
    result.factor.emplace_back();
    for (const double ratio : result.ratios) {
      const double seconds = replayer->mean(
          scaled(run, {{"", "communication", {}, bandwidth}, {"", "gradients", {}, ratio}}));
      result.seconds.back().push_back(seconds);
      result.factor.back().push_back(seconds > 0 ? result.alone / seconds : 1);
    }
  }
  return result;
}

}  // namespace hocket::whatif
