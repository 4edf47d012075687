/// @file The deck's training: its keys, and what no single one of them shows.
#pragma once

#include "cluster.hpp"
#include "deck/deck.hpp"

namespace brume::deck {

const Schema<TrainingKeys>& training_schema();

/// @throws Error(input)
void check_training(const TrainingKeys& training, const Checker& check);

}  // namespace brume::deck
