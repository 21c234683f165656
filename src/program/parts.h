// SPDX-License-Identifier: Apache-2.0
// Tasks in parts. A task of n parts along a letter is n tasks in sequence in its lane, each on a
// block of every operand with the letter. Others may depend on a part, and a part on others.
// Execution, check and prediction see these tasks.
#pragma once

#include <vector>

#include "base/error.h"
#include "program/program.h"

namespace hocket::program {

bool has_parts(const Program& program);

/// Throws Error if tasks are not expanded into parts, for code that runs or predicts programs.
void expect_no_parts(const Program& program, const char* where);

/// The program with every part as a task of its own.
struct Expanded {
  Program program;
  /// By class and task: the task that it is a part of.
  std::vector<std::vector<TaskId>> origin;
};
/// Names the task that can't be done in parts.
struct PartsError : Error {
  PartsError(ClassId of, TaskId which, std::string_view text)
      : Error(Kind::kInput, "parts", text), cls(of), task(which) {}
  ClassId cls;
  TaskId task;
};
/// Throws PartsError where a task can't be done in parts: its op has no such letter, does not act
/// index by index along it nor adds up over it, or moves along it; blocks are not equal; a view is
/// cut along another dim; a part that is waited for does not exist.
Expanded expand_parts(const Program& program);

}  // namespace hocket::program
