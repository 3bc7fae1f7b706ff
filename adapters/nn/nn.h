#pragma once

/// The bundled trainer. Build a Sequential, wrap its parameters in an optimizer, and feed it from a
/// DataLoader. It works in f32, or in bf16 and f16 with f32 arithmetic, on the CPU or a GPU.
/// tutti::distributed (adapters/distributed.h) makes it data-parallel.

#include "tutti/adapters/distributed.h"
#include "tutti/adapters/nn/data.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/adapters/nn/training_state.h"
