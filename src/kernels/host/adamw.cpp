#include "kernels/adamw.hpp"

namespace brume::kernels {

void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector weight, Vector m,
                Vector v) {
  adamw_step_on_host(step, squares, grad, weight, m, v);
}

template <Narrow Storage>
void adamw_step(const AdamW& step, const double* squares, ConstVector grad, Vector master, Vector m,
                Vector v, VectorOf<Storage> weight) {
  adamw_step_on_host<Storage>(step, squares, grad, master, m, v, weight);
}

}  // namespace brume::kernels

#include "kernels/instances/adamw.hpp"
