/// @file The tables of a deck's keys, besides those of inc/deck/deck.hpp and the cluster's.
#pragma once

#include "cluster.hpp"
#include "deck/deck.hpp"

namespace brume::deck {

const Schema<RopeScalingKeys>& rope_scaling_schema();
const Schema<OptimizerKeys>& optimizer_schema();
const Schema<TrainingKeys>& training_schema();
const Schema<DataKeys>& data_schema();
const Schema<GenerationKeys>& generation_schema();
const Schema<AnalysisKeys>& analysis_schema();
const Schema<OutputKeys>& output_schema();

/// @throws Error(input)
void check_training(const TrainingKeys& training, const Checker& check);

}  // namespace brume::deck
