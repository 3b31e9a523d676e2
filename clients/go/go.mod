module dq

go 1.19
