package hall

func (*T[K]) west() {}

func (other) west() {}
