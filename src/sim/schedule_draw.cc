// SPDX-License-Identifier: Apache-2.0
// Implements: to_text, to_json and to_svg of a ScheduleReport (schedule_sim.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"
#include "base/text.h"
#include "sim/schedule_sim.h"

namespace hocket::sim {

namespace {

using parallel::Action;

/// Upper bound on the length of a timeline, in characters.
constexpr double kMaxLineChars = 4000;

/// Returns whether every rank runs one stage, of its own number.
bool stages_are_ranks(const ScheduleReport& report) {
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    for (const ScheduleCell& cell : report.ranks[rank].cells) {
      for (const Action& action : cell.actions) {
        if (action.stage != static_cast<int>(rank)) return false;
      }
    }
  }
  return true;
}

/// Returns "0F3", or "0F3;1B2" for a pair; without the stage where stages are ranks.
std::string label_of(const ScheduleCell& cell, bool with_stage) {
  std::string label;
  for (const Action& action : cell.actions) {
    label += label.empty() ? "" : ";";
    label += with_stage ? to_string(action) : fmt::format("{}{}", action.kind, action.micro_batch);
  }
  return label;
}

std::string costs_text(const ScheduleCosts& costs) {
  std::string text = fmt::format(
      "F {:g}, I {:g}, W {:g}, B {:g}, comm {:g}", costs.forward, costs.inputs, costs.weights,
      costs.backward < 0 ? costs.inputs + costs.weights : costs.backward, costs.communication);
  if (costs.overlapped >= 0) {
    text += fmt::format(", FB {:g}", costs.overlapped);
  }
  return text;
}

}  // namespace

std::string to_text(const ScheduleReport& report) {
  // Figures come first, then a line per rank. A cell is as wide as its duration: its name, filled
  // up with dashes; dots where the rank waits. The shortest cell has room for its name and a blank.
  const bool with_stage = !stages_are_ranks(report);
  double work = 0;
  double scale = 0;
  for (const ScheduleRank& rank : report.ranks) {
    work = std::max(work, rank.busy);
    for (const ScheduleCell& cell : rank.cells) {
      if (cell.end > cell.begin) {
        const double room = label_of(cell, with_stage).size() + 1;
        scale = std::max(scale, room / (cell.end - cell.begin));
      }
    }
  }
  scale = std::min(scale, kMaxLineChars / std::max(report.step, 1e-9));
  std::string text = fmt::format(
      "schedule {}: {}, {}, {} micro-batches\ncosts    {}\nstep     {:.6g}; the busiest rank "
      "computes {:.6g}\nbubble   {:.1f} % of the ranks' time\n\nrank  busy %  peak live "
      "micro-batches\n",
      report.name, counted(std::ssize(report.ranks), "rank"), counted(report.stages, "stage"),
      report.micro_batches, costs_text(report.costs), report.step, work, 100 * report.bubble);
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const double busy = report.step > 0 ? report.ranks[rank].busy / report.step : 0;
    text += fmt::format("{:4}  {:6.1f}  {:g}\n", rank, 100 * busy, report.ranks[rank].peak_live);
  }
  text += '\n';
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    std::string line(std::llround(report.step * scale), '.');
    for (const ScheduleCell& cell : report.ranks[rank].cells) {
      const size_t begin = std::llround(cell.begin * scale);
      const size_t end = std::llround(cell.end * scale);
      if (end == begin) continue;
      std::string shown = label_of(cell, with_stage).substr(0, end - begin);
      shown.resize(end - begin, '-');
      shown.back() = end - begin > 1 ? ' ' : shown.back();
      line.replace(begin, end - begin, shown);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("{:4}  {}\n", rank, line);
  }
  return text;
}

std::string to_json(const ScheduleReport& report) {
  JsonWriter json(JsonWriter::Style{.indent = 1, .digits = 9});
  json.object().member("schedule", report.name).member("stages", report.stages);
  json.member("micro_batches", report.micro_batches).member("step", report.step);
  json.member("bubble", report.bubble).key("ranks").array();
  for (const ScheduleRank& rank : report.ranks) {
    json.object().member("busy", rank.busy).member("peak_live", rank.peak_live);
    json.key("cells").array();
    for (const ScheduleCell& cell : rank.cells) {
      json.object().member("begin", cell.begin).member("end", cell.end).key("actions").array();
      for (const Action& action : cell.actions) {
        json.value(to_string(action));
      }
      json.end().end();
    }
    json.end().end();
  }
  json.end().end();
  return json.take();
}

std::string to_svg(const ScheduleReport& report) {
  // A row per rank and a box per cell. Both halves of a pair share its time, one above the other.
  constexpr double kUnit = 32, kRow = 28, kLeft = 56, kTop = 28;
  const auto colour = [](char kind) {
    switch (kind) {
      case 'F':
        return "#9ecae1";
      case 'I':
        return "#a1d99b";
      case 'W':
        return "#fdd0a2";
      default:
        return "#74c476";
    }
  };
  const double width = kLeft + kUnit * report.step + 8;
  const double height = kTop + kRow * report.ranks.size() + 8;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"10\">\n"
      "<text x=\"4\" y=\"16\" font-size=\"12\">step {2:.6g}, bubble {3:.1f} %</text>\n",
      width, height, report.step, 100 * report.bubble);
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const double top = kTop + kRow * rank;
    svg += fmt::format("<text x=\"4\" y=\"{:.1f}\">rank {}</text>\n", top + kRow / 2 + 3, rank);
    for (const ScheduleCell& cell : report.ranks[rank].cells) {
      const double share = (kRow - 4) / cell.actions.size();
      for (size_t i = 0; i < cell.actions.size(); ++i) {
        const double x = kLeft + kUnit * cell.begin;
        const double y = top + share * i;
        svg += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
            "stroke=\"#555\" stroke-width=\"0.5\"/><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
            x, y, kUnit * (cell.end - cell.begin), share, colour(cell.actions[i].kind), x + 2,
            y + share / 2 + 3.5, to_string(cell.actions[i]));
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace hocket::sim
