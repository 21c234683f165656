// SPDX-License-Identifier: Apache-2.0
#include "cost/link_errors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cost/link_fit.h"

namespace hocket::cost {

std::vector<GroupError> errors_of(const Cluster& cluster, const std::vector<CommSample>& samples,
                                  const std::string& predicted_from) {
  std::map<std::tuple<std::string, int32_t, int32_t>, std::vector<CommSample>> groups;
  for (const CommSample& s : samples) {
    if (s.ranks > 1) {
      groups[{s.op, s.ranks, s.nodes}].push_back(s);
    }
  }
  std::vector<GroupError> list;
  for (const auto& [key, of] : groups) {
    const bool any_large = std::any_of(
        of.begin(), of.end(), [](const CommSample& s) { return s.bytes >= kMinJudgedBytes; });
    GroupError error{std::get<0>(key), std::get<1>(key), std::get<2>(key), predicted_from};
    for (const CommSample& s : of) {
      if (any_large && s.bytes < kMinJudgedBytes) continue;
      const double off = std::abs(predicted_s(cluster, s) / s.seconds - 1);
      error.mean += off;
      ++error.sizes;
      if (off >= error.worst) {
        error.worst = off;
        error.worst_bytes = s.bytes;
      }
    }
    error.mean /= static_cast<double>(error.sizes);
    list.push_back(error);
  }
  return list;
}

std::vector<GroupError> held_out(const Cluster& base, const std::vector<CommSample>& samples) {
  std::vector<GroupError> list;
  const auto predict = [&](const auto& is_kept_back, const std::string& predicted_from) {
    std::vector<CommSample> seen, kept_back;
    for (const CommSample& s : samples) {
      (is_kept_back(s) ? kept_back : seen).push_back(s);
    }
    const bool any =
        std::any_of(seen.begin(), seen.end(), [](const CommSample& s) { return s.ranks > 1; });
    if (!any || kept_back.empty()) return;
    const LinkFit fit = fit_links(base, seen, "the rest");
    for (GroupError& error : errors_of(fit.cluster, kept_back, predicted_from)) {
      const char* used = error.nodes > 1 ? "links.inter" : "links.intra";
      if (std::find(fit.fitted.begin(), fit.fitted.end(), used) == fit.fitted.end()) {
        error.predicted_from += ", links given";
        error.links_given = true;
      }
      list.push_back(error);
    }
  };
  std::set<std::pair<int32_t, int32_t>> groups;
  for (const CommSample& s : samples) {
    if (s.ranks > 1) {
      groups.insert({s.ranks, s.nodes});
    }
  }
  for (const auto& [ranks, nodes] : groups) {
    predict([&, n = ranks, g = nodes](const CommSample& s) { return s.ranks == n && s.nodes == g; },
            "other groups");
  }
  // Marks every other size of each group.
  std::map<std::tuple<std::string, int32_t, int32_t>, std::map<double, bool>> odd;
  for (const CommSample& s : samples) {
    odd[{s.op, s.ranks, s.nodes}][s.bytes] = false;
  }
  for (auto& [group, sizes] : odd) {
    bool is_odd = false;
    for (auto& [size, mark] : sizes) {
      mark = is_odd;
      is_odd = !is_odd;
    }
  }
  predict(
      [&](const CommSample& s) {
        return odd[{s.op, s.ranks, s.nodes}][s.bytes];
      },
      "other sizes");
  return list;
}

}  // namespace hocket::cost
