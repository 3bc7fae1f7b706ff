#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/core/request.h"
#include "tutti/core/work_state.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// One named operation of this rank, from submission to completion. Owned by the engine; touched
/// only by the holder of its token.
struct Entry {
  Request request;
  TensorView input;
  TensorView output;            // equal to input if in place
  bool library_output = false;  // the engine makes the output when its size is known
  Tensor made;                  // that output
  std::shared_ptr<WorkState> work;
  size_t output_index = 0;       // of the work's outputs
  int64_t divide_output_by = 1;  // sparse average: the made output is divided at the end
  Clock::time_point submitted;

  int64_t sent_id = -1;   // the number by which it was asked for; -1: in full
  int64_t left = 0;       // allreduce: elements of answered slices that are not final yet
  int64_t final_end = 0;  // allreduce: end of the last final slice, for the restart
};

}  // namespace tutti
