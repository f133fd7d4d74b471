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

COVID_CT = Card(
    title="Federated semi-supervised learning for COVID region segmentation in chest CT using "
    "multi-national data from China, Italy, Japan",
    authors="D. Yang, Z. Xu, W. Li, A. Myronenko, H. R. Roth, S. Harmon, S. Xu, B. Turkbey, E. Turkbey, "
    "X. Wang, et al.",
    venue="Medical Image Analysis",
    year=2021,
    bibtex="""@article{yang2021federated,
  title={Federated semi-supervised learning for COVID region segmentation in chest CT using
         multi-national data from China, Italy, Japan},
  author={Yang, Dong and Xu, Ziyue and Li, Wenqi and Myronenko, Andriy and Roth, Holger R and others},
  journal={Medical Image Analysis},
  volume={70},
  pages={101992},
  year={2021}
}""",
    summary="self-training at unlabeled sites after a warm-up, fixed shares",
)
