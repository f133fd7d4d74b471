"""Papers that several methods come from, each cited once."""

from consilia.methods.contract import Card

FEDMIX = Card(
    title="FedMix: Mixed Supervised Federated Learning for Medical Image Segmentation",
    authors="J. Wicaksana, Z. Yan, D. Zhang, X. Huang, H. Wu, X. Yang, K.-T. Cheng",
    venue="IEEE Transactions on Medical Imaging",
    year=2023,
    bibtex="""@article{wicaksana2023fedmix,
  title={FedMix: Mixed Supervised Federated Learning for Medical Image Segmentation},
  author={Wicaksana, Jeffry and Yan, Zengqiang and Zhang, Dong and Huang, Xijie and
          Wu, Huimin and Yang, Xin and Cheng, Kwang-Ting},
  journal={IEEE Transactions on Medical Imaging},
  volume={42},
  number={7},
  pages={1955--1968},
  year={2023}
}""",
    summary="masks, boxes, image tags and nothing in one federation, by cross pseudo labels",
)
