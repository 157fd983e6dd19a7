#include "teratron/models/vit/vit_config.h"

#include "teratron/settings/arguments.h"

namespace teratron {

VitConfig vit_config(const Arguments& args) {
  VitConfig config{{transformer_config(args)}};
  config.mask = Mask::full;
  config.windows.clear();
  config.position = PositionEmbedding::none;  // those of patches are added here
  config.height = args.img_h;
  config.width = args.img_w;
  config.channels = args.num_channels;
  config.patch = args.patch_dim;
  config.classes = args.num_classes;
  config.head = args.vit_head == "mlp" ? VitConfig::HeadKind::mlp : VitConfig::HeadKind::linear;
  config.finetunes = args.finetune;
  config.max_positions = config.rows();
  return config;
}

}  // namespace teratron
