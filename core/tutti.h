#pragma once

/// Start here: Communicator (core/communicator.h) is the library; Work (core/work.h) is what its
/// calls return; Options (core/settings/options.h) are its settings; Tensor and TensorView
/// (tensor/tensor.h) are what it moves; Error (base/error.h) is all that it throws.

#include "tutti/base/cpp20.h"
#include "tutti/base/error.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"
#include "tutti/core/persistent_allreduce.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/work.h"
#include "tutti/tensor/tensor.h"
