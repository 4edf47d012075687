#include "block_pieces.hpp"

#include <set>

namespace brume::engine {

std::map<int, BlockPieces> block_pieces(const plan::Plan& plan, const model::Config& model,
                                        const plan::Place& place, const Optimizer& optimizer) {
  const std::vector<model::Block> all =
      model::blocks(model, plan.stages[std::size_t(place.stage)].split().division());
  std::set<int> here{0};  // a tied head reads its table
  for (int index : plan::stages_beside(plan, place.stage))
    for (auto [block, last] = plan::block_range(plan, index); block <= last; ++block)
      here.insert(block);
  std::map<int, BlockPieces> blocks;
  for (int block : here) {
    BlockPieces& pieces = blocks[block];
    pieces.block = all[block];
    pieces.layout = plan::layout(pieces.block, place);
    for (const model::Parameter& parameter : pieces.block.parameters)
      pieces.rules.push_back(update_rule(optimizer, parameter));
    pieces.indices.fill(-1);
    for (std::size_t i = 0; i < pieces.layout.pieces.size(); ++i) {
      const model::ParameterId id = pieces.parameter(pieces.layout.pieces[i]).id;
      pieces.indices[index_of(id)] = int(i);
    }
  }
  return blocks;
}

}  // namespace brume::engine
