#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti {

/// Adasum (Maleki et al. 2021) combines two vectors a and b to a (1 - a.b / 2|a|^2) + b (1 - a.b /
/// 2|b|^2). This is their sum if they are orthogonal and their mean if they are parallel. More than
/// two vectors are combined up a binary tree over the ranks, whose halves differ by at most one
/// rank. Each tensor has inner products of its own. The number of ranks is arbitrary.
///
/// The tree's result is a linear combination of the ranks' vectors, and its factors follow from
/// their inner products alone. So each rank receives all ranks' values of its share of the
/// elements, the inner products of the shares are added up over the ranks, and the combined shares
/// are gathered. This sends as many bytes as an allreduce, plus 8 n (n + 1) / 2 bytes of inner
/// products per tensor.
class Adasum {
 public:
  /// `tensors` are f32 or f64 in host memory. Their number and lengths are equal on all ranks.
  /// `name` is matched over the ranks.
  Adasum(Communicator& comm, std::string name, std::vector<TensorView> tensors);

  /// Combines the tensors in place. Blocking; all ranks call it.
  void combine();

 private:
  Communicator& comm_;
  const std::string name_;
  const std::vector<TensorView> tensors_;
  // The index of each tensor's first element among all elements, and last the number of all
  // elements.
  std::vector<int64_t> begins_;
  std::vector<int64_t> shares_;  // number of elements of each rank's share
  Tensor all_;                   // the tensors one after another
};

/// Returns the factors by which the tree combines `ranks` vectors. `products` are their inner
/// products, the upper triangle row by row: (0, 0), (0, 1) ... (1, 1), (1, 2) ...
std::vector<double> adasum_factors(std::span<const double> products, int ranks);

}  // namespace tutti
