#pragma once

/// Start here. Communicator (core/communicator.h) is the library. Its calls return Work
/// (core/work.h). Options (core/settings/options.h) are its settings. Tensor and TensorView
/// (tensor/tensor.h) are the data that it moves. Everything that it throws is an Error
/// (base/error.h).

#include "tutti/base/cpp20.h"
#include "tutti/base/error.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"
#include "tutti/core/persistent_allreduce.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/work.h"
#include "tutti/tensor/tensor.h"
