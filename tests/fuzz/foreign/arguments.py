Arguments(hidden_size=96, ffn_hidden_size=384, moe_num_experts=8, moe_top_k=2, mlp_type="glu")
