/// @file A plan read, written, and described as JSON or in words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "analyzer/analyzer.hpp"
#include "given.hpp"
#include "plan/plan.hpp"
#include "verbs.hpp"

namespace brume::app {

/// One plan with its prediction in the form every planning verb prints.
nlohmann::json described(const plan::Plan& plan, const analyzer::Prediction& prediction);

/// Writes the plan that was searched, or, where that fails after all, shows it.
void keep(const plan::Plan& plan, const std::string& path);

/// The formulas with numbers, and slow links of the network that the plan uses.
std::string explained(const plan::Plan& plan, const Given& given);

/// A plan from a file; the given model gets its padding. @throws Error(input) if it does not fit
plan::Plan load_plan(const std::string& file, Given& given);

/// Predicts a plan by Mist's counting. @return the exit code
int analyze_as_mist(const PlanOptions& options, Given given);
/// Prints the fastest plan by Mist's counting, in the deck's search space. @return the exit code
int plan_as_mist(const PlanOptions& options, const Given& given);

}  // namespace brume::app
