#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti {

/// Adasum (Maleki et al. 2021): two vectors become a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2),
/// their sum where they are orthogonal, their mean where they are parallel. More of them go up a
/// binary tree over the ranks, whose halves differ by one rank at most; each tensor has inner
/// products of its own. Any number of ranks.
///
/// What the tree yields is a linear combination of the ranks' vectors, and its factors follow from
/// their inner products alone. So each rank gets all ranks' values of one share of the elements,
/// the inner products over the shares are added up, and the combined shares are gathered: as many
/// bytes as an allreduce sends, and 8 n (n + 1) / 2 bytes of inner products a tensor.
class Adasum {
 public:
  /// `tensors` are f32, or f64, in host memory, equally many and long on all ranks. `name` is
  /// matched over the ranks.
  Adasum(Communicator& comm, std::string name, std::vector<TensorView> tensors);

  /// In place, blocking, all ranks.
  void combine();

 private:
  Communicator& comm_;
  const std::string name_;
  const std::vector<TensorView> tensors_;
  std::vector<int64_t> begins_;  // of each tensor among all elements, and their end
  std::vector<int64_t> shares_;  // elements of each rank
  Tensor all_;                   // the tensors one after another
};

/// The factors by which the tree combines `ranks` vectors with these inner products: the upper
/// triangle row by row, so (0, 0), (0, 1) ... (1, 1), (1, 2) ...
std::vector<double> adasum_factors(std::span<const double> products, int ranks);

}  // namespace tutti
